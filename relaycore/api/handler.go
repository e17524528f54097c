package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"relayedge/admission"
	"relayedge/relaycore/mailbox"
	"relayedge/relaycore/push"
	"relayedge/relaycore/wire"
)

// Relay is what stands behind the API. Its methods are safe for concurrent use;
// those that wait for a disk say so.
type Relay interface {
	// Ready returns nil while the relay takes connections.
	Ready() error
	// Known reports whether an identity has published here.
	Known(wire.Identity) bool
	// Bundle returns what an identity has published last.
	Bundle(wire.Identity) (bundle []byte, signature [64]byte, ok bool)
	// Outdated reports whether a newer bundle is published than one of that time.
	Outdated(id wire.Identity, sentAt time.Time) bool
	// Publish stores a bundle that its identity has signed at a time, unless it is
	// outdated: then it reports false.
	Publish(id wire.Identity, bundle []byte, signature [64]byte, sentAt time.Time, from Client) bool
	// Refuses returns the refusal that Deliver would have for a message, or nil.
	Refuses(mailbox.Message) *mailbox.Refusal
	// Deliver puts a message into the recipient's mailbox and reports whether the
	// recipient is connected, so that it is on its way. It waits for the disk, and
	// fails as [mailbox.Store.Put] does.
	Deliver(mailbox.Message) (connected bool, err error)
	// Fetch returns what waits for recipient behind a place, as [mailbox.Store.Read]
	// does, and leaves out what cannot be read. It waits for the disk.
	Fetch(recipient wire.Identity, after uint64, n, size int) []mailbox.Held
	// Acknowledge forgets what recipient has and returns how many there were.
	Acknowledge(recipient wire.Identity, ids []wire.MessageID) int
}

// Client is whose request it is.
type Client struct {
	Host      netip.Prefix // that limits count by; zero: it has no address
	Source    netip.Prefix // that shares count by; zero: sources are not known
	RequestID string       // by which the log knows it, for refusals that tell one
}

type clientKey struct{}

// WithClient returns a context for the requests of a client.
func WithClient(ctx context.Context, c Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// Options are what a Handler works with.
type Options struct {
	Relay    Relay
	Messages admission.Messages
	Throttle *admission.Throttle // of hosts, by what they have not proven
	Keys     *admission.KeyMaker
	Push     *push.Waker // nil: nobody is woken
}

// Handler is the API. Make it with New.
type Handler struct {
	// Static.
	relay      Relay
	messages   admission.Messages
	throttle   *admission.Throttle
	keys       *admission.KeyMaker
	challenges *challenges
	answers    *answers
	push       *push.Waker // nil: nobody is woken

	Counts Counts
}

// Counts is what the API counts.
type Counts struct {
	Requests atomic.Uint64 // to a route of the API
	Accepted atomic.Uint64 // messages
	Replayed atomic.Uint64 // answers that were given again
	Limited  atomic.Uint64 // requests refused for a message limit
	Unproven atomic.Uint64 // requests whose signature or challenge did not hold
}

// New returns the API of a relay.
func New(o Options) *Handler {
	now := time.Now()
	return &Handler{
		relay: o.Relay, messages: o.Messages, throttle: o.Throttle, keys: o.Keys, push: o.Push,
		challenges: newChallenges(now), answers: newAnswers(MostAnswers, AnswerBudget, AnswerLife),
	}
}

// Kept returns how many answers are kept, and the bytes that they are charged.
func (h *Handler) Kept() (n int, bytes int64) { return h.answers.stats(time.Now()) }

// route is one kind of request.
type route struct {
	serve func(*Handler, *request) *reply
	read  bool // a public read, which HEAD may ask for
	push  bool // there where somebody can be woken
}

const identitiesPath = "/identities/"

// routes are the API's, by method and path; an identity in the path is left out.
var routes = map[string]route{
	"POST /messages":      {serve: (*Handler).send},
	"GET /messages":       {serve: (*Handler).fetch},
	"POST /acks":          {serve: (*Handler).acknowledge},
	"GET /auth/challenge": {serve: (*Handler).challenge, read: true},
	"GET /health":         {serve: (*Handler).health, read: true},
	"GET /identities/":    {serve: (*Handler).bundle, read: true},
	"PUT /identities/":    {serve: (*Handler).publish},
	"PUT /push":           {serve: (*Handler).leaveEndpoint, push: true},
	"DELETE /push":        {serve: (*Handler).takeEndpoint, push: true},
	"POST /push/test":     {serve: (*Handler).tryEndpoint, push: true},
}

func find(method, path string) (route, bool) {
	if name, ok := strings.CutPrefix(path, identitiesPath); ok {
		if name == "" || strings.Contains(name, "/") {
			return route{}, false
		}
		path = identitiesPath
	}
	if method == http.MethodHead {
		r, ok := routes["GET "+path]
		return r, ok && r.read
	}
	r, ok := routes[method+" "+path]
	return r, ok
}

// Serves reports whether the API has a route for a request.
func Serves(method, path string) bool {
	_, ok := find(method, path)
	return ok
}

// request is a request on its way through the API.
type request struct {
	*http.Request
	client Client
	body   http.ResponseWriter // for what bounds the body
}

// ServeHTTP answers a request that [Serves] has a route for; another gets a 404
// without a body.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, ok := find(r.Method, r.URL.Path)
	if !ok || found.push && h.push == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	h.Counts.Requests.Add(1)
	client, _ := r.Context().Value(clientKey{}).(Client)
	q := &request{Request: r, client: client, body: w}
	if found.read {
		if refused := h.read(q); refused != nil {
			refused.write(w)
			return
		}
	}
	found.serve(h, q).write(w)
}

// reply is a whole answer.
type reply struct {
	status int
	retry  int64 // seconds; 0: no Retry-After
	body   []byte
	stream func(http.ResponseWriter) // writes the body, in place of body
}

// ok is an answer with a value as its body.
func ok(status int, value any) *reply {
	b, err := json.Marshal(value)
	if err != nil {
		panic("api: " + err.Error()) // they are ours, and have no value that JSON has not
	}
	return &reply{status: status, body: append(b, '\n')}
}

func (a *reply) write(w http.ResponseWriter) {
	head := w.Header()
	head.Set("Content-Type", "application/json")
	head.Set("Cache-Control", "no-store")
	head.Set("X-Content-Type-Options", "nosniff")
	if a.retry > 0 {
		head.Set("Retry-After", strconv.FormatInt(a.retry, 10))
	}
	if a.status == http.StatusUnauthorized {
		head.Set("WWW-Authenticate", "Signature")
	}
	if a.stream != nil {
		w.WriteHeader(a.status)
		a.stream(w)
		return
	}
	head.Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	w.Write(a.body)
}
