// Package policyfile reads a strict YAML file into Go structs that describe
// their own keys. It knows YAML, positions, ranges and defaults; it does not
// know what any key means.
//
// # Struct tags
//
//	key:"max_connections"   the key; `key:",inline"` takes the fields of an embedded struct into this level
//	default:"10000"         the value of a key that is not written: a scalar, [] or [a, b], or for
//	                        integers another key of the same struct, optionally divided: "max_circuits/64"
//	min:"1" max:"100"       the range of an integer; either may name another key of the same struct,
//	                        which must stand before this one
//	zero:"off"              what 0 means where 0 has a meaning of its own (for documentation and messages)
//	enum:"a|b|c"            the allowed values of a string, or of each element of a list of strings
//	required:"true"         the key must be written
//	path:"true"             a file path: relative ones are relative to the folder of the policy file;
//	                        path:"unix" says so of what stands behind "unix:", other texts stay;
//	                        path:"socket" of a socket, which is none of the files that [Files] names
//	word:"redis"            a text that stands for itself where else a path does
//	doc:"what it does"      one phrase
//
// Field types: bool, int, string, any type with UnmarshalText (netip.Prefix,
// netip.AddrPort, …), structs, slices and string-keyed maps of these. A string type
// with MarshalText alone is read as it stands and shown as that says, so that a
// password in it is not shown. A key of
// a scalar or list type has a default or is required; maps are empty and
// structs take the defaults of their keys. A *int is an optional integer: it is
// nil where the key is not written, has no default, and bounds no other key; what
// then holds is its struct's to say. Tags that contradict this are a
// fault of the program: the functions of this package panic on them.
//
// A key that is not written takes its default or, where another key has moved
// its range, the nearest value of the range; only written values are refused.
// A struct with a method Validate() error is asked after its fields were
// decoded; errors.Join of several errors gives several faults, and an error with
// a method PolicyKey() string (a dotted path below the struct: "addresses[0]")
// is reported at that key's position. A key that has a fault of its own already
// stands at its default then, and what Validate says of it is dropped, so that
// one fault neither hides nor makes others; so is an error whose method
// PolicyBound() string names such a key, on which its range hangs. Validate is asked for sections that
// are not written too: the program runs with their values.
//
// # The YAML that is understood
//
// One document of mappings, lists and scalars, in UTF-8, with or without a
// byte order mark, lines ended by LF or CRLF. Anchors, aliases, merge keys,
// tags, further documents and tabs in the indentation are refused, and so are
// control characters, raw or escaped: what a file contains must not reach a
// terminal or a log in a form that either obeys. An integer is a plain decimal
// number, a bool is true or false. A section, map or list with nothing behind
// its colon is empty; a scalar with nothing behind it is refused.
package policyfile
