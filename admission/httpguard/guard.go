package httpguard

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"relayedge/admission"
)

// Options are what a Guard is told about the server that it stands in.
type Options struct {
	// Windows counts the requests. nil: the memory of this process. If it has a
	// method SetLimit(int64, time.Duration), as admission.FixedWindows has,
	// Guard.SetConfig calls it.
	Windows admission.Windows
	// Keys makes the keys under which requests are counted. nil: with a secret of
	// this guard's own.
	Keys *admission.KeyMaker
	// Addr returns the address of a request's client, as the server knows it and
	// not as the client tells it. The zero Addr, of a peer on a unix socket, is of
	// no host; nil: nobody has an address.
	Addr func(*http.Request) netip.Addr
	// Embedded are the IPv6 prefixes whose last 32 bits are the client's address.
	Embedded []netip.Prefix
	// RequestID returns the id by which the server knows the request. nil, or an
	// id that is not 1 to 128 letters, digits and "-_.": one is made.
	RequestID func(*http.Request) string
	// Refused is told of every refusal, before it is answered. nil: nobody is.
	Refused func(admission.Decision)
}

// Guard is the request limit of a server. It is safe for concurrent use.
type Guard struct {
	options     Options
	credentials *admission.Credentials
	anon        admission.Key
}

// New returns the error of c.Validate, or a guard.
func New(c Config, o Options) (*Guard, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if o.Windows == nil {
		o.Windows = admission.NewFixedWindows(int64(c.Limit), c.Window())
	}
	if o.Keys == nil {
		o.Keys = admission.NewKeyMaker(nil)
	}
	return &Guard{
		options:     o,
		credentials: admission.NewCredentials(int64(c.NewCredentialsPerHostMinute), life(c)),
		anon:        o.Keys.Key("anon", ""),
	}, nil
}

// life is how long a credential is known: its window, but not so short that
// its host would be charged for it again within the minute.
func life(c Config) time.Duration { return max(c.Window(), time.Minute) }

// SetConfig puts c in force. Windows that are open keep their counts. It returns
// the error of c.Validate and then changes nothing.
func (g *Guard) SetConfig(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	g.credentials.SetLimit(int64(c.NewCredentialsPerHostMinute), life(c))
	if w, ok := g.options.Windows.(interface{ SetLimit(int64, time.Duration) }); ok {
		w.SetLimit(int64(c.Limit), c.Window())
	}
	return nil
}

// Credentials are those that the guard has seen.
func (g *Guard) Credentials() *admission.Credentials { return g.credentials }

// Handler lets through to next what the limit allows and answers the rest. It
// reads nothing of a request but its headers.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d := g.Take(r); !d.Allowed {
			g.Refuse(w, r, d)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Take counts the request.
func (g *Guard) Take(r *http.Request) admission.Decision {
	now := time.Now()
	return g.options.Windows.Take(r.Context(), g.key(r, now), now)
}

// key returns whom the request is counted for.
func (g *Guard) key(r *http.Request, now time.Time) admission.Key {
	host := g.host(r)
	if token := credential(r.Header); token != "" {
		if k := g.options.Keys.Key("credential", token); g.credentials.Apart(k, host, now) {
			return k
		}
	}
	return host
}

func (g *Guard) host(r *http.Request) admission.Key {
	if g.options.Addr == nil {
		return g.anon
	}
	host, _ := admission.Keys(g.options.Addr(r), g.options.Embedded)
	if !host.IsValid() {
		return g.anon
	}
	return g.options.Keys.Key("ip", host.String())
}

// refusal is the body of an answer.
type refusal struct {
	Error struct {
		Code      string     `json:"code"`
		Message   string     `json:"message"`
		RequestID string     `json:"requestId"`
		RateLimit *rateLimit `json:"rateLimit,omitempty"`
	} `json:"error"`
}

type rateLimit struct {
	Limit     int64 `json:"limit"`
	Remaining int64 `json:"remaining"`
	ResetAt   int64 `json:"resetAt"` // Unix seconds
}

// Fault returns the body of a refusal in the shape of this package's: a code for
// programs, a message for people, and the numbers of the window that was met; nil:
// it is of no window. An id that is not 1 to 128 letters, digits and "-_." is not
// told: one is made.
func Fault(code, message, requestID string, d *admission.Decision) []byte {
	var body refusal
	body.Error.Code, body.Error.Message, body.Error.RequestID = code, message, madeID(requestID)
	if d != nil {
		body.Error.RateLimit = &rateLimit{d.Limit, d.Remaining, d.ResetSecs()}
	}
	text, err := json.Marshal(&body)
	if err != nil {
		panic("httpguard: a body of strings and numbers cannot be written: " + err.Error())
	}
	return text
}

// Refuse answers a request that Take has not allowed: 429 with the window, or 503
// where the store is away.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request, d admission.Decision) {
	if g.options.Refused != nil {
		g.options.Refused(d)
	}
	status, text := http.StatusTooManyRequests, []byte(nil)
	if d.Unavailable {
		status = http.StatusServiceUnavailable
		text = Fault("store_unavailable", "The request limit cannot be looked up; try again.", g.requestID(r), nil)
	} else {
		text = Fault("rate_limit_exceeded", "Too many requests.", g.requestID(r), &d)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Cache-Control", "no-store")
	h.Set("Retry-After", strconv.FormatInt(d.RetryAfterSecs(), 10))
	w.WriteHeader(status)
	w.Write(text) // a client that is gone has no use for it
}

func (g *Guard) requestID(r *http.Request) string {
	if g.options.RequestID == nil {
		return madeID("")
	}
	return madeID(g.options.RequestID(r))
}

// madeID returns an id that can be told: that one, or one of its own.
func madeID(id string) string {
	if isID(id) {
		return id
	}
	var made [16]byte
	rand.Read(made[:]) // never fails: it ends the process instead
	return hex.EncodeToString(made[:])
}

func isID(id string) bool {
	for _, b := range []byte(id) {
		switch {
		case b >= '0' && b <= '9', b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b == '-', b == '_', b == '.':
		default:
			return false
		}
	}
	return len(id) >= 1 && len(id) <= 128
}
