// Package client speaks the relay's protocol from the other end: it connects
// over WebSocket, proves an identity, opens circuits and exchanges messages.
// It keeps no state but the connection's: what to send again after a lost
// connection is its caller's to know.
//
// There are two ways to a relay. A [Session] is a WebSocket connection; [Hold]
// dials again where one is lost. [Mail] sends and fetches messages over HTTP,
// without a connection of its own, and sends each request again by the rules that
// its comment gives. Both ask [Passing] whether going on makes sense: what was
// refused for good is not repeated.
//
//	s, err := client.Dial(ctx, "wss://relay.example.org/relay", client.Options{})
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	if err := s.Publish(ctx, key, bundle); err != nil {
//		return err
//	}
//	go s.KeepAlive(ctx)
//	request, err := s.Ask(ctx, friend, knock)
//	…
//	for {
//		frame, err := s.Receive(ctx)
//		…
//		switch f := frame.(type) {
//		case wire.CircuitOpen: // f.RequestID == request
//		case wire.Message:
//		}
//	}
package client
