package certs

import (
	"context"
	"errors"

	"github.com/caddyserver/certmagic"
)

// storage is where what a CA issues is kept, with the account there and what is
// remembered of orders.
type storage interface {
	certmagic.Storage

	// name is what the policy and the log call it.
	name() string
	// probe tries whether the result of an order could be kept.
	probe(ctx context.Context) error
	// unusable says what is wrong with the storage, and what to do.
	unusable(err error) error
	// volatile names the kind of storage, if it is one that is commonly gone after a
	// restart.
	volatile() string
	// keep tells the storage that what is at some keys, and below, is still used.
	keep(ctx context.Context, keys ...string) error
	// hold takes a lock, unless another holds it: then the context is nil. What is
	// done under the lock is done under the context, which ends if the lock is lost.
	hold(ctx context.Context, name string) (under context.Context, release func(), err error)
}

// openStorage returns the storage of a section.
func openStorage(cfg ACME, shared Shared) (storage, error) {
	switch {
	case !cfg.InRedis():
		return newFolder(cfg.Storage), nil
	case shared == nil:
		return nil, errors.New("certificates.acme.storage: is redis, and this process has no store; write redis.url and restart")
	}
	return newSharedStorage(shared), nil
}
