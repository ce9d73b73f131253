package semel

import (
	"regexp"
	"strconv"
	"time"
)

// Times on the wire, and the guard against old actions. Reads no clock.

var dateTime = regexp.MustCompile(
	`^([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))$`)

// parseTimestamp reads an RFC 3339 date-time as milliseconds since 1970.
func parseTimestamp(text string) (int64, bool) {
	match := dateTime.FindStringSubmatch(text)
	if match == nil {
		return 0, false
	}
	number := func(group int) int {
		value, _ := strconv.Atoi(match[group])
		return value
	}
	year, month, date := number(1), number(2), number(3)
	hour, minute, second := number(4), number(5), number(6)
	if hour > 23 || minute > 59 || second > 60 || number(9) > 23 || number(10) > 59 {
		return 0, false
	}
	instant := time.Date(year, time.Month(month), date, 0, 0, 0, 0, time.UTC)
	// A date that does not exist is moved to one that does.
	if year == 0 || instant.Month() != time.Month(month) || instant.Day() != date {
		return 0, false
	}
	offset := number(9)*60 + number(10)
	if match[8] == "-" {
		offset = -offset
	}
	millis, _ := strconv.Atoi((match[7] + "000")[:3])
	at := instant.UnixMilli() + int64((hour*60+minute-offset)*60+second)*1000 + int64(millis)
	const first, last = -62_135_596_800_000, 253_402_300_799_999
	return at, at >= first && at <= last
}

// guard refuses actions that are too old, by the time that the client wrote into the body.
type guard struct {
	generatedAt string
	cap, grace  time.Duration
}

type staleness int

const (
	fresh staleness = iota
	stale
	fromFuture
)

// judge compares an action's time with now; both bounds themselves are fresh.
func (g *guard) judge(generatedAt, now int64) staleness {
	age := now - generatedAt
	switch {
	case age > g.cap.Milliseconds()+g.grace.Milliseconds():
		return stale
	case age < -g.grace.Milliseconds():
		return fromFuture
	default:
		return fresh
	}
}
