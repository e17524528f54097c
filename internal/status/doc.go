// Package status is what an edge says of itself to a person: one document, which
// programs read as JSON, a browser as a page and a terminal as lines of text. It
// owns the names of the document's fields, the figures of the last hour, and how
// a figure is written. It does not know where figures come from: whoever has them
// fills the document.
//
// All of it is for reading. Nothing of a client is in it but networks at their caps,
// where whoever fills it is allowed to tell them; names that a client chose are not.
package status
