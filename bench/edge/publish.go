package main

func publish(args []string) error { return nil }
