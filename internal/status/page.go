package status

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
)

// Where the page and the document stand.
const (
	PagePath     = "/"
	DocumentPath = "/status"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

//go:embed page.js
var pageScript string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"size": size, "span": span, "percent": percent, "inForce": inForce, "upDown": upDown, "day": day, "clock": clock,
	"capped": capped, "numbered": numbered,
	"num": func(n any) (string, error) {
		switch n := n.(type) {
		case int:
			return count(n), nil
		case int64:
			return count(n), nil
		case *int64:
			return count(*n), nil
		case uint64:
			return count(n), nil
		}
		return "", fmt.Errorf("%T is no number", n)
	},
	"expires":        func(c Certificate) string { text, _ := expires(c); return text },
	"grade":          func(c Certificate) string { _, grade := expires(c); return grade },
	"hiddenNetworks": func() string { return hiddenNetworks },
}).Parse(pageText))

// policy allows the page its own style and script, which are in it, and requests to
// where it comes from. It loads nothing else and stands in no frame.
var policy = "default-src 'none'; script-src " + hash(pageScript) + "; style-src " + hash(pageStyle) +
	"; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// Pages are the page and the document, by their paths. Each answer is made of what
// read returns.
func Pages(read func() Status) map[string]http.Handler {
	return map[string]http.Handler{
		PagePath: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			var b bytes.Buffer // a page that fails half-way is not sent
			if err := page.Execute(&b, newView(read())); err != nil {
				panic(err)
			}
			h := w.Header()
			h.Set("Content-Type", "text/html; charset=utf-8")
			h.Set("Content-Security-Policy", policy)
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Content-Length", strconv.Itoa(b.Len()))
			w.Write(b.Bytes())
		}),
		DocumentPath: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			text, err := json.Marshal(read())
			if err != nil {
				panic(err)
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(text)))
			w.Write(text)
		}),
	}
}

// view is what the template sees: the document, and what the script makes of it
// too.
type view struct {
	Status
	Charts         []chart
	Used, Others   []Limit // that something is held against, and those without
	Counted, Quiet []Rejection
	Style          template.CSS
	Script         template.JS
}

func newView(s Status) view {
	v := view{Status: s, Charts: charts(s), Style: template.CSS(pageStyle), Script: template.JS(pageScript)}
	for _, l := range s.Limits {
		if l.Used != nil {
			v.Used = append(v.Used, l)
		} else {
			v.Others = append(v.Others, l)
		}
	}
	for _, r := range s.Rejections {
		if r.Total > 0 {
			v.Counted = append(v.Counted, r)
		} else {
			v.Quiet = append(v.Quiet, r)
		}
	}
	return v
}
