package semel

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// A leader's turn: enter, the handler, leave, COMMIT; waiting while another process holds the key; and finding out
// from the record what came of a commit whose answer was lost.

const (
	triesMax    = 5
	pollFirst   = 10 * time.Millisecond
	pollLongest = 250 * time.Millisecond
	// commitMax is how long the server may take to answer COMMIT before its answer counts as lost.
	commitMax = 25 * time.Second
)

// turn is one leader's work on one key.
type turn struct {
	once    *Once
	arrival *arrival
	handler Handler
	until   time.Time
	// isResolving: a COMMIT was sent whose answer was lost, so that only the record may answer.
	isResolving bool
	pause       time.Duration
}

// againError: nothing was committed, and the transaction may be run again.
type againError struct{ cause error }

func (e againError) Error() string { return e.cause.Error() }

// lostError: COMMIT was sent, and whether it was carried out is not known.
type lostError struct{ cause error }

func (e lostError) Error() string { return e.cause.Error() }

// run answers the request. The row is what others with the same request may be told.
func (t *turn) run(ctx context.Context) (Answer, *row, error) {
	if problem := t.admit(ctx); problem != nil {
		return Answer{}, nil, problem
	}
	for tries := 1; ; {
		answer, found, err := t.attempt(ctx)
		var lost lostError
		var once againError
		switch {
		case errors.As(err, &lost):
			t.isResolving, t.pause = true, pollFirst
		case errors.As(err, &once):
			if tries++; tries > triesMax {
				return Answer{}, nil, once.cause
			}
			time.Sleep(time.Duration(rand.Int64N(int64(tries) * int64(20*time.Millisecond))))
		case err != nil && t.isResolving:
			// The record cannot be read yet, so nothing can be said yet.
			if problem := t.pauseBeforeRetry(); problem != nil {
				return Answer{}, nil, problem
			}
		case err == nil && found != nil && found.verdict == "in-flight":
			waited, problem := t.wait(ctx)
			if problem != nil {
				answer, err := t.once.refuseInFlight(problem)
				return answer, nil, err
			}
			if waited.verdict != "execute" {
				answer, err := t.once.answer(t.arrival, waited)
				return answer, waited, err
			}
		default:
			return answer, found, err
		}
	}
}

func settlementPending() *Problem {
	detail := "whether the transaction was committed is not known yet"
	return newProblem("settlement-pending", detail).after(2 * time.Second)
}

func (t *turn) pauseBeforeRetry() *Problem {
	if time.Now().Add(t.pause).After(t.until) {
		return settlementPending()
	}
	time.Sleep(t.pause)
	t.pause = min(t.pause*2, pollLongest)
	return nil
}

// attempt is one transaction. It returns the row of a verdict other than execute, or of the answer that was committed;
// no row where the answer was not recorded.
func (t *turn) attempt(ctx context.Context) (answer Answer, found *row, err error) {
	// The client's going away does not cancel work that may take effect.
	ctx = context.WithoutCancel(ctx)
	tx, err := t.once.db.BeginTx(ctx, &sql.TxOptions{Isolation: t.once.options.Isolation})
	if err != nil {
		return Answer{}, nil, storeAway(err)
	}
	// Also where the handler panics. After COMMIT it does nothing.
	defer tx.Rollback()
	t.once.step("begun")
	found, err = enter(ctx, tx, t.arrival)
	if err != nil {
		return Answer{}, nil, t.refuseError(err)
	}
	t.once.step("entered")
	switch found.verdict {
	case "execute":
		// The lost transaction would need the lock that this one holds: it has ended without a commit.
		t.isResolving = false
		return t.execute(ctx, tx, found.now)
	case "in-flight":
		return Answer{}, found, nil
	default:
		answer, err := t.once.answer(t.arrival, found)
		return answer, found, err
	}
}

func (t *turn) execute(ctx context.Context, tx *sql.Tx, now int64) (Answer, *row, error) {
	if t.arrival.generatedAt != nil {
		// The guard's refusal is recorded like an answer, so that a retry is told the same.
		if problem := t.once.profile.guard.refuse(*t.arrival.generatedAt, now); problem != nil {
			return t.commit(ctx, tx, t.once.profile.render(problem, t.arrival.requestID))
		}
	}
	answer, err := t.handler(ctx, tx)
	if err != nil {
		if isRetriable(err) {
			return Answer{}, nil, againError{err}
		}
		return Answer{}, nil, err
	}
	t.once.step("handled")
	switch t.once.profile.end(answer.Status, answer.Header("semel-outcome")) {
	case endRollBack:
		return t.once.profile.mark(answer, "atomic"), nil, nil
	case endRefuse:
		detail := fmt.Sprintf("the handler says that its answer %d took effect, which cannot be recorded", answer.Status)
		return Answer{}, nil, newProblem("not-settled", detail)
	case endCommit:
	}
	return t.commit(ctx, tx, answer)
}

// commit writes the record and commits it with the effect.
func (t *turn) commit(ctx context.Context, tx *sql.Tx, answer Answer) (Answer, *row, error) {
	packed, err := packHeaders(filterHeaders(answer.Headers))
	if err != nil {
		return Answer{}, nil, err
	}
	record := &row{verdict: "replay", status: answer.Status, headers: packed, body: answer.Body, guarantee: "atomic"}
	verdict, err := leave(ctx, tx, t.arrival, record.status, record.headers, record.body)
	switch {
	case err == nil:
	case sqlState(err) == "SM005":
		return t.once.profile.mark(answer, "atomic"), nil, nil
	case isRetriable(err):
		return Answer{}, nil, againError{err}
	case isAway(err):
		return Answer{}, nil, storeAway(err)
	default:
		return Answer{}, nil, notSettled(err)
	}
	t.once.step("left")
	if err := commitWithin(commitMax, tx); err != nil {
		return Answer{}, nil, judgeCommit(err)
	}
	t.once.step("committed")
	if verdict == "not-kept" {
		record = nil
	}
	return t.once.profile.mark(answer, "atomic"), record, nil
}

// commitWithin sends COMMIT. An answer that takes too long counts as lost; the orphan ends with its connection.
func commitWithin(limit time.Duration, tx *sql.Tx) error {
	done := make(chan error, 1)
	go func() { done <- tx.Commit() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("the server did not answer COMMIT within %v", limit)
	}
}

// judgeCommit says what an error of COMMIT means.
func judgeCommit(err error) error {
	switch {
	case isRetriable(err):
		return againError{err}
	case strings.HasPrefix(sqlState(err), "23"):
		return err
	case isUncommitted(err):
		return notSettled(err)
	default:
		return lostError{err}
	}
}

func notSettled(err error) *Problem {
	detail := "the answer could not be recorded with its effect; the transaction was rolled back"
	// A savepoint that is still open is inside of the transaction.
	if sqlState(err) == "SM003" && !strings.Contains(err.Error(), "savepoint") {
		detail = "the handler ended its transaction by itself; what it wrote since may stand without a record"
	}
	problem := newProblem("not-settled", detail)
	problem.cause = err
	return problem
}

// refuseError says what an error of enter means: COMMIT was not sent, so nothing was committed.
func (t *turn) refuseError(err error) error {
	switch {
	case isRetriable(err):
		return againError{err}
	case isAway(err):
		return storeAway(err)
	default:
		return err
	}
}

func storeAway(err error) *Problem {
	problem := newProblem("store-unavailable", "").after(time.Second)
	problem.cause = err
	return problem
}

// wait polls until the key is no longer in flight. It holds no connection between two looks.
func (t *turn) wait(ctx context.Context) (*row, *Problem) {
	inFlight := newProblem("in-flight", "").after(time.Second)
	if t.isResolving {
		inFlight = settlementPending()
	}
	if t.once.profile.inFlight != inFlightWait && !t.isResolving {
		return nil, inFlight
	}
	for pause := pollFirst; ; pause = min(pause*2, pollLongest) {
		if time.Now().Add(pause).After(t.until) {
			return nil, inFlight
		}
		select {
		case <-ctx.Done():
			return nil, inFlight
		case <-time.After(pause):
		}
		found, err := look(context.WithoutCancel(ctx), t.once.db, t.arrival)
		if err == nil && found.verdict != "in-flight" {
			return found, nil
		}
		if err != nil && !isAway(err) {
			return nil, storeAway(err)
		}
	}
}

// admit asks the limits about a new key, in autocommit: inside the transaction it would hold the principal's budget
// until the handler commits.
func (t *turn) admit(ctx context.Context) *Problem {
	limit := t.once.profile.admission
	if limit.count == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	found, err := look(ctx, t.once.db, t.arrival)
	if err != nil {
		return storeAway(err)
	}
	if found.verdict != "execute" {
		return nil
	}
	limits := map[string]any{"admission": map[string]any{"count": limit.count, "window_ms": limit.window.Milliseconds()}}
	var verdict string
	var waitMS int64
	err = t.once.db.QueryRowContext(ctx, admitSQL, t.arrival.id, toJSON(t.arrival.about), toJSON(limits)).Scan(&verdict, &waitMS)
	if err != nil {
		return storeAway(err)
	}
	if verdict == "admitted" {
		return nil
	}
	wait := max(time.Duration(waitMS)*time.Millisecond, time.Second)
	return newProblem("admission-limited", fmt.Sprintf("at most %d new keys are taken", limit.count)).after(wait)
}

// answer says what a verdict other than execute and in-flight leads to.
func (o *Once) answer(a *arrival, found *row) (Answer, error) {
	switch found.verdict {
	case "replay":
		return o.profile.replay(found)
	case "not-kept":
		return Answer{}, refuseNotKept(found)
	case "mismatch":
		return Answer{}, o.profile.refuseMismatch(a, found)
	case "unknown":
		detail := "ask again later with the same key; a new key could do it twice"
		return Answer{}, newProblem("outcome-unknown", detail).after(30 * time.Second)
	case "sealed":
		return Answer{}, newProblem("key-sealed", "")
	case "credential-changed":
		detail := "this key was used for the same request with another credential; it is not run again"
		return Answer{}, newProblem("credential-changed", detail)
	case "too-old":
		return Answer{}, newProblem("too-old", "")
	case "first-sent-in-future":
		return Answer{}, newProblem("first-sent-in-future", "the first attempt is said to lie in the future")
	case "stale":
		return Answer{}, newProblem("superseded", "").after(time.Second)
	default:
		return Answer{}, fmt.Errorf("semel: the store gave a verdict that this library does not know: %q", found.verdict)
	}
}

func refuseNotKept(found *row) *Problem {
	words := "it took effect; do not send it again under another key"
	switch {
	case found.outcomeUnknown || found.status >= 500:
		words = "it ended in a server error; whether it took effect is not known"
	case found.status >= 400:
		words = "it was refused by the service, with an answer too large to keep"
	}
	problem := newProblem("answer-not-kept", words)
	if found.outcomeUnknown {
		problem.with("outcome", "unknown")
	}
	// Zero: somebody found out that it took effect, but not with which answer.
	if found.status != 0 {
		problem.with("originalStatus", found.status)
	}
	headers, _ := unpackHeaders(found.headers)
	if location := headerLines(headers).one("location"); location != nil {
		problem.with("location", *location)
	}
	return problem
}

func (p *Profile) refuseMismatch(a *arrival, found *row) *Problem {
	detail := "the key was first used for a request with another method, path, query or body"
	problem := newProblem("fingerprint-mismatch", detail)
	switch p.reveal {
	case revealNothing:
	case revealPrefix8:
		if len(found.fingerprint) > 8 {
			problem.with("request_fingerprint", hex.EncodeToString(found.fingerprint[1:9]))
		}
	case revealPayloadHashes:
		if len(found.payloadHash) > 0 {
			problem.with("expectedHash", hex.EncodeToString(found.payloadHash))
		}
		problem.with("receivedHash", hex.EncodeToString(a.payloadHash))
	}
	return problem
}
