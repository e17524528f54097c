package admission

import (
	"errors"
	"fmt"
	"time"
)

// MessageLimitsConfig is the message_limits section of a policy: how many
// messages each sender, and all of them together, may have accepted. 0 turns a
// window off, -1 refuses everything.
type MessageLimitsConfig struct {
	Sender                SenderMessageLimits `key:"sender" doc:"messages of one sender"`
	Global                GlobalMessageLimits `key:"global" doc:"messages of all senders, and the public reads"`
	UnprovenPerHostMinute int                 `key:"unproven_per_host_minute" default:"60" min:"-1" max:"1000000" zero:"off" doc:"requests a minute from one host in the name of a sender whose signature does not prove it; -1 refuses all"`
}

// SenderMessageLimits are the limits of one sender.
type SenderMessageLimits struct {
	Minute int `key:"minute" default:"20" min:"-1" max:"1000000" zero:"off" doc:"messages a minute, as a token bucket; -1 refuses all"`
	Hour   int `key:"hour" default:"200" min:"-1" max:"1000000" zero:"off" doc:"messages in any hour; -1 refuses all"`
	Day    int `key:"day" default:"1000" min:"-1" max:"1000000" zero:"off" doc:"messages in any 24 hours; -1 refuses all"`
}

// GlobalMessageLimits are the limits of all senders together.
type GlobalMessageLimits struct {
	Minute int `key:"minute" default:"1000" min:"-1" max:"1000000000" zero:"off" doc:"messages and public reads a minute, as a token bucket; -1 refuses all"`
	Hour   int `key:"hour" default:"100000" min:"-1" max:"1000000000" zero:"off" doc:"messages and public reads in any hour; -1 refuses all"`
	Day    int `key:"day" default:"1000000" min:"-1" max:"1000000000" zero:"off" doc:"messages and public reads in any 24 hours; -1 refuses all"`
}

const (
	maxSenderMessages = 1_000_000
	maxGlobalMessages = 1_000_000_000
)

// DefaultMessageLimits returns the defaults of the policy file.
func DefaultMessageLimits() MessageLimitsConfig {
	return MessageLimitsConfig{
		Sender:                SenderMessageLimits{Minute: 20, Hour: 200, Day: 1000},
		Global:                GlobalMessageLimits{Minute: 1000, Hour: 100_000, Day: 1_000_000},
		UnprovenPerHostMinute: 60,
	}
}

// Validate returns an error that names every value out of its range by its policy key.
func (c MessageLimitsConfig) Validate() error {
	var faults []error
	within := func(key string, value, most int) {
		if value < -1 || value > most {
			faults = append(faults, &limitError{key: key, fault: fmt.Sprintf("%d is out of range, allowed is 1 to %d, 0 (off) or -1 (refuse all)", value, most)})
		}
	}
	within("sender.minute", c.Sender.Minute, maxSenderMessages)
	within("sender.hour", c.Sender.Hour, maxSenderMessages)
	within("sender.day", c.Sender.Day, maxSenderMessages)
	within("global.minute", c.Global.Minute, maxGlobalMessages)
	within("global.hour", c.Global.Hour, maxGlobalMessages)
	within("global.day", c.Global.Day, maxGlobalMessages)
	within("unproven_per_host_minute", c.UnprovenPerHostMinute, maxSenderMessages)
	return errors.Join(faults...)
}

// ReadShares says what the public reads may draw of the global limits, whatever
// store keeps them: of each window half, rounded up, for all reads together
// (the part), and for each host a sixteenth of the minute, at least 1, within
// that. Windows that are off, or refuse all, do so for reads too; a host then has
// no share of its own.
func (c MessageLimitsConfig) ReadShares() (part GlobalMessageLimits, hostMinute int) {
	half := func(limit int) int {
		if limit <= 0 {
			return limit
		}
		return limit - limit/2
	}
	g := c.Global
	part = GlobalMessageLimits{half(g.Minute), half(g.Hour), half(g.Day)}
	if g.Minute > 0 {
		hostMinute = max(1, g.Minute/16)
	}
	return part, hostMinute
}

// MessageLengths are how long the windows of message limits last. The zero
// MessageLengths are a minute, an hour and a day; shorter ones are for tests of a
// store that follows a real clock.
type MessageLengths struct{ Minute, Hour, Day time.Duration }

// OrReal returns l with the real length for each that is 0.
func (l MessageLengths) OrReal() MessageLengths {
	if l.Minute == 0 {
		l.Minute = time.Minute
	}
	if l.Hour == 0 {
		l.Hour = time.Hour
	}
	if l.Day == 0 {
		l.Day = 24 * time.Hour
	}
	return l
}

// messageRules is a MessageLimitsConfig made ready. It never changes once built.
type messageRules struct {
	sender, global, reads tallyRules
	hostReads             int64 // a minute
	senderLife, hostLife  int64 // how long what a sender, or a reading host, did can count
	counted               bool  // a sender's windows are not all off
}

func newMessageRules(c MessageLimitsConfig, lengths MessageLengths) messageRules {
	rules := func(minute, hour, day int) tallyRules {
		return tallyRules{
			minute: int64(minute), length: int64(lengths.Minute),
			hour: slideRule{int64(hour), int64(lengths.Hour), hourSteps},
			day:  slideRule{int64(day), int64(lengths.Day), daySteps},
		}
	}
	part, hostReads := c.ReadShares()
	r := messageRules{
		sender:    rules(c.Sender.Minute, c.Sender.Hour, c.Sender.Day),
		global:    rules(c.Global.Minute, c.Global.Hour, c.Global.Day),
		reads:     rules(part.Minute, part.Hour, part.Day),
		hostReads: int64(hostReads),
		counted:   c.Sender != SenderMessageLimits{},
	}
	r.senderLife = r.sender.life()
	r.hostLife = int64(lengths.Minute)
	if hostReads > 0 {
		r.hostLife = paceOf(r.hostReads, int64(lengths.Minute)).burst
	}
	return r
}
