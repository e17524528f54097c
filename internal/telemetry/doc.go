// Package telemetry serves the metrics of a process and the rules that the
// endpoint keeps: loopback unless allowed otherwise, at most 8 connections of
// which one is kept for /metrics, 5 s for a request's headers, 30 s for a
// connection in all. Packages describe what they count as [Family] values;
// Prometheus is known only here.
package telemetry
