// Package semel makes a request take effect once, inside the service's own PostgreSQL transaction: the effect, the
// record and the answer are committed together. The library begins and commits the transaction, and nothing of the
// answer is given before the commit is confirmed.
//
// It refuses to guess: a commit whose answer was lost is answered from the record, never from memory.
package semel

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"fmt"
	"slices"
	"time"
)

// Options of a Once. The zero value is the ietf profile.
type Options struct {
	// Profile is what differs between services; the zero value is ietf.
	Profile *Profile
	// Isolation of the handler's transaction; the zero value is the database's default.
	Isolation sql.IsolationLevel
	// Owned leaves off the marker by which COMMIT fails unless the record was written. About a fifth cheaper; only for
	// handlers that never send COMMIT themselves.
	Owned bool
	// HoldTime is how long a handler may leave its transaction idle before the server ends it; 30 s by default.
	HoldTime time.Duration
	// Secrets make fingerprints keyed, the current one first, so that small payloads do not leak.
	Secrets [][]byte
	// RefuseOld refuses requests whose Idempotency-First-Sent lies before the retry window.
	RefuseOld bool
	// Limit bounds the new keys of each principal; nil: as the profile says.
	Limit *Limit
}

// Limit is how many new keys a principal may use in a window.
type Limit struct {
	Count  int
	Window time.Duration
}

// Handler does the work of a request in a transaction that it neither commits nor rolls back. It may run more than
// once, since serialisation failures and deadlocks are tried again; only what it does in this transaction is covered.
type Handler func(ctx context.Context, tx *sql.Tx) (Answer, error)

// Once runs handlers once for each key.
type Once struct {
	db      *sql.DB
	options Options
	profile Profile
	flights flights
	// step is called at the steps of an attempt; tests stop processes there.
	step func(name string)
}

// New makes a Once on a database that `semel migrate` has prepared.
func New(db *sql.DB, options Options) *Once {
	if options.HoldTime == 0 {
		options.HoldTime = 30 * time.Second
	}
	profile, _ := Preset("ietf")
	if options.Profile != nil {
		profile = *options.Profile
	}
	if options.Limit != nil {
		profile.admission = admission{options.Limit.Count, options.Limit.Window}
	}
	return &Once{db: db, options: options, profile: profile, step: func(string) {}}
}

// Do runs a handler once for the request's key and returns its answer, or the answer of the first run again. The error
// is a *Problem where the library refused, and the handler's own error where that failed; nothing is committed then. A
// caller that goes away while it waits never starts the handler; once started, the handler runs to its end.
func (o *Once) Do(ctx context.Context, request Request, handler Handler) (Answer, error) {
	if request.RequestID == "" {
		request.RequestID = "req-" + hex.EncodeToString(random(8))
	}
	arrival, problem := o.read(&request)
	if problem != nil {
		return Answer{}, problem
	}
	if arrival == nil {
		return o.runUnkeyed(ctx, handler)
	}
	until := time.Now().Add(o.waitLimit())
	for {
		mayWait := o.profile.inFlight == inFlightWait
		led, heard, problem := o.flights.join(ctx, arrival, until, mayWait)
		switch {
		case problem != nil:
			return o.refuseInFlight(problem)
		case led != nil:
			return o.lead(ctx, arrival, led, until, handler)
		case heard.row != nil && arrival.isLike(heard.of):
			return o.answer(arrival, heard.row)
		}
	}
}

// waitLimit is how long a request may wait for another one with its key.
func (o *Once) waitLimit() time.Duration {
	if o.profile.inFlight == inFlightWait {
		return o.profile.wait
	}
	return 25 * time.Second
}

// refuseInFlight answers a request whose key is in use: by the profile, 202 or a refusal.
func (o *Once) refuseInFlight(problem *Problem) (Answer, error) {
	if problem.Slug == "in-flight" && o.profile.inFlight == inFlightAccepted {
		return o.profile.mark(o.profile.acceptedAnswer(), "atomic"), nil
	}
	return Answer{}, problem
}

// sharedVerdicts hold for everyone who sent the same request; others depend on the one who asked.
var sharedVerdicts = []string{"replay", "not-kept", "mismatch", "sealed", "unknown"}

// lead carries out a leader's turn, and wakes those who wait for it whatever happens.
func (o *Once) lead(ctx context.Context, a *arrival, led *flight, until time.Time, handler Handler) (Answer, error) {
	var what news
	defer func() { o.flights.finish(a, led, what) }()
	if ctx.Err() != nil {
		return Answer{}, newProblem("in-flight", "the caller has gone").after(time.Second)
	}
	turn := &turn{once: o, arrival: a, handler: handler, until: until}
	answer, row, err := turn.run(ctx)
	if row != nil && slices.Contains(sharedVerdicts, row.verdict) {
		what = news{row: row, of: a}
	}
	return answer, err
}

// runUnkeyed runs a handler for a request that needs no key and has none: a plain transaction.
func (o *Once) runUnkeyed(ctx context.Context, handler Handler) (Answer, error) {
	tx, err := o.db.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: o.options.Isolation})
	if err != nil {
		return Answer{}, storeAway(err)
	}
	defer tx.Rollback()
	answer, err := handler(ctx, tx)
	if err != nil {
		return Answer{}, err
	}
	if o.profile.end(answer.Status, answer.Header("semel-outcome")) == endCommit {
		if err := tx.Commit(); err != nil {
			return Answer{}, fmt.Errorf("semel: whether the transaction was committed is not known: %w", err)
		}
	}
	return o.profile.mark(answer, "none"), nil
}

func (o *Once) mintKey() string {
	bytes := random(16)
	if o.profile.mintsULID {
		return newULID(time.Now().UnixMilli(), bytes)
	}
	bytes[6], bytes[8] = bytes[6]&15|0x40, bytes[8]&63|0x80
	text := hex.EncodeToString(bytes)
	return text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
}

func newULID(millis int64, random []byte) string {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	out := make([]byte, 26)
	for at := 9; at >= 0; at-- {
		out[at] = digits[millis&31]
		millis >>= 5
	}
	for at := range 16 {
		out[10+at] = digits[random[at]&31]
	}
	return string(out)
}

func random(count int) []byte {
	bytes := make([]byte, count)
	if _, err := rand.Read(bytes); err != nil {
		panic("semel: no randomness: " + err.Error())
	}
	return bytes
}
