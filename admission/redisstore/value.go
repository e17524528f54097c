package redisstore

import (
	"context"
	"errors"
	"io/fs"
	"time"
)

// Value is one record that several processes change, each knowing what it changes.
type Value struct {
	records *Records
	name    string
	life    time.Duration
}

// Value returns the record of a name as a value that lives for life from its last
// change.
func (r *Records) Value(name string, life time.Duration) *Value { return &Value{r, name, life} }

// Load returns the value, which version it is, and how long ago it was put there, by
// the server's clock. Where there is none, the version is empty.
func (v *Value) Load(ctx context.Context) (value []byte, version string, age time.Duration, err error) {
	value, s, err := v.records.get(ctx, v.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", 0, nil
	}
	if err != nil {
		return nil, "", 0, err
	}
	return value, head(s.sealed), max(v.life-s.left, 0), nil
}

// Swap puts a value in the place of a version, and reports whether it did: not where
// another has been put there before.
func (v *Value) Swap(ctx context.Context, version string, value []byte) (bool, error) {
	return v.records.put(ctx, v.name, value, v.life, version)
}
