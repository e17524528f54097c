// Package httpguard is the request limit of an HTTP server: the first guard on
// every route, public ones too, before anything authenticates. It exists to stop a
// loop that has run away, or a sweep through credentials, and not to shape traffic.
// It knows nothing of who a credential belongs to, nor whether it is good.
//
//	guard, err := httpguard.New(httpguard.DefaultConfig(), httpguard.Options{
//		Addr: func(r *http.Request) netip.Addr {
//			peer, _ := netip.ParseAddrPort(r.RemoteAddr)
//			return peer.Addr()
//		},
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	server := &http.Server{Handler: guard.Handler(routes)}
//
// # Whom a request is counted for
//
// The first of these that it has:
//
//   - its credential: the token of Authorization: Bearer, or X-Api-Key, which is one
//     window for both;
//   - its host: the client's IPv4 address, or the /64 of its IPv6 address;
//   - nobody: all requests without either have one window together.
//
// Names of headers and the scheme Bearer are read in any case, blanks around a
// value, between scheme and token do not count, and the token is taken byte by
// byte. A request names no credential if its token is empty, longer than 4,096
// bytes or has control characters in it, or if it names several different ones.
// Another scheme than Bearer is no credential of this kind.
//
// A credential is known from its first request until no request has named it for
// the length of the window, and a minute at least. A host may bring so many a
// minute that are not known ([Config.NewCredentialsPerHostMinute], as a token
// bucket); further ones count for the host, until they are taken. So inventing
// credentials earns nobody windows without end, and fills no table:
// [admission.Credentials] knows 65,536. Each process knows its own, also where
// the windows are those of a fleet.
//
// The key under which a request is counted is a keyed hash of 128 bits. Neither
// the credential nor the address stands in it, in an answer or in an error.
//
// # What a refused request gets
//
// 429, with Retry-After in whole seconds, rounded up and at least 1, and
//
//	{"error":{"code":"rate_limit_exceeded","message":"Too many requests.","requestId":"…",
//	 "rateLimit":{"limit":6000,"remaining":0,"resetAt":1756654380}}}
//
// where resetAt is the second, since 1970, at which the window is over. It counts
// for nothing. Where the windows are kept in a store that is away, and the policy
// refuses then, it gets 503 with Retry-After and the code store_unavailable,
// without rateLimit.
package httpguard
