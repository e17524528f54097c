package httpguard_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"relayedge/admission/httpguard"
)

func Example() {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })

	guard, err := httpguard.New(httpguard.Config{Limit: 1, WindowSecs: 60, NewCredentialsPerHostMinute: 30}, httpguard.Options{
		Addr: func(r *http.Request) netip.Addr {
			peer, _ := netip.ParseAddrPort(r.RemoteAddr)
			return peer.Addr()
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := guard.Handler(routes)

	for range 2 {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/health", nil))
		fmt.Println(answer.Code)
	}
	// Output:
	// 200
	// 429
}
