package redisstore

import (
	"errors"
	"time"
)

// fleetIDLength is how long an edge's id is, in hex.
const fleetIDLength = 16

// Hand stops the beats and returns what the process that takes this one's place goes
// on with, as the same edge.
func (c *Fleet) Hand() []byte {
	c.turn <- struct{}{} // waits for a beat that is under way
	c.handed = true
	<-c.turn
	return append([]byte(c.id), c.fleet.Hand(time.Now())...)
}

// Inherit goes on where another process has stopped, before Run.
func (c *Fleet) Inherit(handed []byte) error {
	if len(handed) < fleetIDLength {
		return errors.New("what the process before knows of its fleet is cut short")
	}
	if err := c.fleet.Inherit(handed[fleetIDLength:], time.Now()); err != nil {
		return err
	}
	c.id = string(handed[:fleetIDLength])
	return nil
}

// TakeBack has the beats go on after Hand: the other process has ended.
func (c *Fleet) TakeBack() {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if c.handed {
		c.handed = false
		c.fleet.TakeBack()
	}
}
