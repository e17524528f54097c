// Package telemetry serves the metrics of a process and the rules that the
// endpoint keeps: loopback unless allowed otherwise, at most 8 connections of
// which one is kept for /metrics, 5 s for a request with its body, 30 s for a
// connection in all. A connection that has asked nothing makes way for the next.
// Pages that stand beside the metrics keep them too, and answer no request for a
// host that is not the endpoint's. Packages describe what they count as [Family]
// values; Prometheus is known only here.
package telemetry
