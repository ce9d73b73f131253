package semel

// What the scenarios cannot show from outside: who polls, who holds connections, who may run, what is said when the
// database is away.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

const effectTable = "CREATE TABLE effect (key text NOT NULL)"

func order(key string) Request {
	return Request{
		Endpoint: "create-order", Caller: Caller{Principal: "alice"}, Headers: [][2]string{{"Idempotency-Key", key}},
		Body: []byte(`{"amount":5}`),
	}
}

func insert(key, body string) Handler {
	return func(ctx context.Context, tx *sql.Tx) (Answer, error) {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (key) VALUES ($1)", key)
		return Answer{Status: 201, Body: []byte(body)}, err
	}
}

func mustNotRun(t *testing.T) Handler {
	return func(context.Context, *sql.Tx) (Answer, error) {
		t.Error("the handler ran")
		return Answer{Status: 200}, nil
	}
}

func slugOf(err error) string {
	var problem *Problem
	if errors.As(err, &problem) {
		return problem.Slug
	}
	return fmt.Sprint(err)
}

func expectEffects(t *testing.T, db *sql.DB, key string, count int) {
	t.Helper()
	if got := countRows(t, db, "effect WHERE key = $1", key); got != count {
		t.Errorf("%d effects of %s, expected %d", got, key, count)
	}
}

// held is a handler that waits to be let go.
type held struct {
	entered, release chan struct{}
}

func newHeld() *held { return &held{make(chan struct{}), make(chan struct{})} }

func (h *held) handler(key string) Handler {
	return func(ctx context.Context, tx *sql.Tx) (Answer, error) {
		answer, err := insert(key, "ok")(ctx, tx)
		close(h.entered)
		<-h.release
		return answer, err
	}
}

type outcome struct {
	answer Answer
	err    error
}

func doLater(once *Once, request Request, handler Handler) chan outcome {
	done := make(chan outcome, 1)
	go func() {
		answer, err := once.Do(context.Background(), request, handler)
		done <- outcome{answer, err}
	}()
	return done
}

// counter counts the statements that a database is sent.
type counter struct{ looks, enters atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "semel.look") {
		c.looks.Add(1)
	}
	if strings.Contains(data.SQL, "semel.enter") {
		c.enters.Add(1)
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func openCounted(t *testing.T, url string) (*sql.DB, *counter) {
	config, err := pgx.ParseConfig(url)
	check(t, err)
	c := &counter{}
	config.Tracer = c
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { db.Close() })
	return db, c
}

func TestThoseWhoWaitForAnotherProcessShareOnePollerAndHoldNoConnection(t *testing.T) {
	url, db := makeDatabase(t, effectTable)
	key, first := newUUID(), newHeld()
	holder := doLater(New(db, Options{}), order(key), first.handler(key))
	<-first.entered
	other, seen := openCounted(t, url)
	other.SetMaxOpenConns(2)
	once := New(other, Options{})
	var waiting []chan outcome
	for range 100 {
		waiting = append(waiting, doLater(once, order(key), insert(key, "ok")))
	}
	// 10 + 20 + 40 + 80 + 160 + 250 + 250: seven looks in about 0.8 s; a hundred pollers would make hundreds.
	eventually(t, "the poller looks again", func() bool { return seen.looks.Load() >= 7 })
	if looks, enters := seen.looks.Load(), seen.enters.Load(); looks > 12 || enters != 1 {
		t.Errorf("%d looks and %d enters", looks, enters)
	}
	if used := other.Stats().InUse; used > 1 {
		t.Errorf("%d connections are in use", used)
	}
	close(first.release)
	if got := <-holder; got.err != nil || got.answer.Replayed {
		t.Errorf("the holder: %+v", got)
	}
	for _, one := range waiting {
		if got := <-one; got.err != nil || !got.answer.Replayed || string(got.answer.Body) != "ok" {
			t.Fatalf("a waiter: %+v", got)
		}
	}
	expectEffects(t, db, key, 1)
}

func TestOneHandlerPerKeyAndProcessRuns(t *testing.T) {
	url, db := makeDatabase(t, effectTable)
	counted, seen := openCounted(t, url)
	once := New(counted, Options{})
	key, first := newUUID(), newHeld()
	all := []chan outcome{doLater(once, order(key), first.handler(key))}
	<-first.entered
	for range 50 {
		all = append(all, doLater(once, order(key), insert(key, "ok")))
	}
	stranger := order(key)
	stranger.Body = []byte(`{"amount":6}`)
	strange := doLater(once, stranger, insert(key, "ok"))
	eventually(t, "all of them wait", func() bool {
		once.flights.mutex.Lock()
		defer once.flights.mutex.Unlock()
		return once.flights.waiters == 51
	})
	if looks, enters := seen.looks.Load(), seen.enters.Load(); looks != 0 || enters != 1 {
		t.Errorf("%d looks and %d enters", looks, enters)
	}
	close(first.release)
	for at, one := range all {
		if got := <-one; got.err != nil || got.answer.Replayed != (at > 0) {
			t.Errorf("%d: %+v", at, got)
		}
	}
	if got := <-strange; slugOf(got.err) != "fingerprint-mismatch" {
		t.Errorf("another request: %+v", got)
	}
	expectEffects(t, db, key, 1)
}

func TestAWaiterWhoseClientHasGoneNeverRunsTheHandler(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	once := New(db, Options{})
	key, first := newUUID(), newHeld()
	failing := doLater(once, order(key), func(ctx context.Context, tx *sql.Tx) (Answer, error) {
		_, _ = first.handler(key)(ctx, tx)
		return Answer{}, errors.New("fails after all")
	})
	<-first.entered
	ctx, cancel := context.WithCancel(context.Background())
	waiting := make(chan error, 1)
	go func() {
		_, err := once.Do(ctx, order(key), mustNotRun(t))
		waiting <- err
	}()
	cancel()
	close(first.release)
	if got := <-failing; got.err == nil || got.err.Error() != "fails after all" {
		t.Errorf("the first: %+v", got)
	}
	if err := <-waiting; slugOf(err) != "in-flight" {
		t.Errorf("the waiter: %v", err)
	}
	expectEffects(t, db, key, 0)
}

func TestACallerThatHasGoneWhenItsTurnComesNeverRunsTheHandler(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := New(db, Options{}).Do(ctx, order(newUUID()), mustNotRun(t)); slugOf(err) != "in-flight" {
		t.Error(err)
	}
}

func TestAHandlerRunsOnWhenItsClientHasGone(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	key, first := newUUID(), newHeld()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := New(db, Options{}).Do(ctx, order(key), first.handler(key))
		done <- err
	}()
	<-first.entered
	cancel()
	close(first.release)
	check(t, <-done)
	expectEffects(t, db, key, 1)
}

func TestPastTheWaitADuplicateIsToldInFlight(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	profile, _ := Preset("ietf")
	short := profile.WithWait(300 * time.Millisecond)
	once, other := New(db, Options{Profile: &short}), New(db, Options{Profile: &short})
	key, first := newUUID(), newHeld()
	holder := doLater(once, order(key), first.handler(key))
	<-first.entered
	for _, one := range []*Once{once, other} {
		if _, err := one.Do(context.Background(), order(key), mustNotRun(t)); slugOf(err) != "in-flight" {
			t.Errorf("a duplicate: %v", err)
		}
	}
	close(first.release)
	if got := <-holder; got.err != nil {
		t.Error(got.err)
	}
	expectEffects(t, db, key, 1)
}

func TestAFrozenHolderLosesItsKeyAndItsLateCommitFails(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	key, first := newUUID(), newHeld()
	frozen := doLater(New(db, Options{HoldTime: 300 * time.Millisecond}), order(key), first.handler(key))
	<-first.entered
	answer, err := New(db, Options{}).Do(context.Background(), order(key), insert(key, "other"))
	if err != nil || string(answer.Body) != "other" || answer.Replayed {
		t.Errorf("the other: %+v %v", answer, err)
	}
	close(first.release)
	if got := <-frozen; slugOf(got.err) != "store-unavailable" {
		t.Errorf("the frozen one: %+v", got)
	}
	expectEffects(t, db, key, 1)
}

func TestEveryIsolationLevelTakesEffectOnce(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		key := newUUID()
		both := []*Once{New(db, Options{Isolation: level}), New(db, Options{Isolation: level})}
		var all []chan outcome
		for at := range 40 {
			all = append(all, doLater(both[at%2], order(key), insert(key, "ok")))
		}
		for _, one := range all {
			if got := <-one; got.err != nil || string(got.answer.Body) != "ok" {
				t.Errorf("%v: %+v", level, got)
			}
		}
		expectEffects(t, db, key, 1)
	}
}

func TestADatabaseThatCannotBeReachedIsSaidSo(t *testing.T) {
	db, err := sql.Open("pgx", "postgres://postgres@127.0.0.1:"+freePort(t)+"/none")
	check(t, err)
	defer db.Close()
	if _, err := New(db, Options{}).Do(context.Background(), order(newUUID()), mustNotRun(t)); slugOf(err) != "store-unavailable" {
		t.Error(err)
	}
}

func TestALostCommitWhileTheDatabaseStaysAwayIsNeverAnsweredByGuess(t *testing.T) {
	url, db := makeDatabase(t, effectTable)
	proxy, through := startProxy(t, url)
	behind, err := sql.Open("pgx", through)
	check(t, err)
	defer behind.Close()
	profile, _ := Preset("ietf")
	short := profile.WithWait(500 * time.Millisecond)
	proxy.arm("kill-after", func() { proxy.listener.Close() })
	key := newUUID()
	if _, err := New(behind, Options{Profile: &short}).Do(context.Background(), order(key), insert(key, "ok")); slugOf(err) != "settlement-pending" {
		t.Error(err)
	}
	expectEffects(t, db, key, 1)
	answer, err := New(db, Options{}).Do(context.Background(), order(key), mustNotRun(t))
	if err != nil || !answer.Replayed || string(answer.Body) != "ok" {
		t.Errorf("the retry: %+v %v", answer, err)
	}
}

func TestAHandlerThatEndsItsTransactionIsToldWhatMayStand(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	for statement, said := range map[string]string{"ROLLBACK": "may stand without a record", "SAVEPOINT s": "was rolled back"} {
		_, err := New(db, Options{}).Do(context.Background(), order(newUUID()), func(ctx context.Context, tx *sql.Tx) (Answer, error) {
			_, err := tx.ExecContext(ctx, statement)
			check(t, err)
			return insert(statement, "ok")(ctx, tx)
		})
		if slugOf(err) != "not-settled" || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v", statement, err)
		}
	}
	// Outside of the transaction, as the guide says.
	expectEffects(t, db, "ROLLBACK", 1)
	expectEffects(t, db, "SAVEPOINT s", 0)
}

func TestAHandlerThatPanicsIsRolledBackAndFreesTheKey(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	once := New(db, Options{})
	key := newUUID()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = once.Do(context.Background(), order(key), func(ctx context.Context, tx *sql.Tx) (Answer, error) {
			_, _ = insert(key, "")(ctx, tx)
			panic("a bug")
		})
	}()
	answer, err := once.Do(context.Background(), order(key), insert(key, "ok"))
	if err != nil || answer.Replayed {
		t.Errorf("%+v %v", answer, err)
	}
	expectEffects(t, db, key, 1)
}

func TestAHandlerThatCommitsByItselfCommitsNothing(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	key := newUUID()
	_, err := New(db, Options{}).Do(context.Background(), order(key), func(ctx context.Context, tx *sql.Tx) (Answer, error) {
		answer, _ := insert(key, "a lie")(ctx, tx)
		_ = tx.Commit()
		return answer, nil
	})
	if err == nil {
		t.Error("it should have failed")
	}
	expectEffects(t, db, key, 0)
}

func TestAStatementThatFailsBeforeCommitIsNotTakenForACommit(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	once := New(db, Options{})
	key := newUUID()
	var held *sql.Tx
	runs := 0
	// A statement that nobody waited for fails between leave and COMMIT, which the server answers with ROLLBACK.
	once.step = func(step string) {
		if step == "left" && runs == 1 {
			_, _ = held.Exec("SELECT 1/0")
		}
	}
	answer, err := once.Do(context.Background(), order(key), func(ctx context.Context, tx *sql.Tx) (Answer, error) {
		held, runs = tx, runs+1
		return insert(key, fmt.Sprint("run ", runs))(ctx, tx)
	})
	if err != nil || string(answer.Body) != "run 2" {
		t.Errorf("%s %v", answer.Body, err)
	}
	expectEffects(t, db, key, 1)
}

func TestRenamesSecretsCredentialsAndLimits(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	ctx := context.Background()
	do := func(options Options, request Request, key string) string {
		answer, err := New(db, options).Do(ctx, request, insert(key, "ok"))
		switch {
		case err != nil:
			return slugOf(err)
		case answer.Replayed:
			return "replay"
		default:
			return "execute"
		}
	}
	expect := func(what, got, wanted string) {
		t.Helper()
		if got != wanted {
			t.Errorf("%s: %s, expected %s", what, got, wanted)
		}
	}
	key := newUUID()
	old, renamed := order(key), order(key)
	old.Endpoint, renamed.Endpoint, renamed.Was = "old-name", "new-name", []string{"old-name"}
	expect("the old name", do(Options{}, old, key), "execute")
	expect("the new name", do(Options{}, renamed, key), "replay")

	key = newUUID()
	expect("the old secret", do(Options{Secrets: [][]byte{[]byte("old")}}, order(key), key), "execute")
	expect("both secrets", do(Options{Secrets: [][]byte{[]byte("new"), []byte("old")}}, order(key), key), "replay")
	expect("no secret", do(Options{}, order(key), key), "outcome-unknown")

	key = newUUID()
	one, two := order(key), order(key)
	one.Caller, two.Caller = AuthorizationCaller("Bearer one"), AuthorizationCaller("Bearer two")
	expect("a credential", do(Options{}, one, key), "execute")
	expect("another credential", do(Options{}, two, key), "credential-changed")

	weak := order("order-1")
	weak.Caller = SharedCaller("all")
	expect("a shared caller", do(Options{}, weak, "order-1"), "key-too-weak")

	limited := Options{Limit: &Limit{Count: 1, Window: time.Hour}}
	first, second := order(newUUID()), order(newUUID())
	first.Caller, second.Caller = Caller{Principal: "carol"}, Caller{Principal: "carol"}
	expect("the first key", do(limited, first, "x"), "execute")
	expect("the second key", do(limited, second, "x"), "admission-limited")
	expect("the first key again", do(limited, first, "x"), "replay")

	aged := order(newUUID())
	aged.Headers = append(aged.Headers, [2]string{"Idempotency-First-Sent", "2020-01-01T00:00:00Z"})
	expect("an old request", do(Options{RefuseOld: true}, aged, "x"), "too-old")
}

func TestMiddlewareGivesAnyHandlerItsTransaction(t *testing.T) {
	_, db := makeDatabase(t, effectTable)
	route := Route{Endpoint: "create-order", Identify: func(*http.Request) (Caller, error) { return Caller{Principal: "alice"}, nil }}
	key := newUUID()
	plain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := Tx(r.Context()).ExecContext(r.Context(), "INSERT INTO effect (key) VALUES ($1)", key)
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "made")
	})
	handler := New(db, Options{}).Middleware(route)(plain)
	for at := range 2 {
		request := httptest.NewRequest("POST", "/orders", strings.NewReader("{}"))
		request.Header.Set("Idempotency-Key", key)
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		isReplay := response.Header().Get("Idempotency-Replayed") == "true"
		if response.Code != 201 || response.Body.String() != "made" || isReplay != (at == 1) {
			t.Errorf("%d: %d %v %s", at, response.Code, response.Header(), response.Body)
		}
	}
	expectEffects(t, db, key, 1)
}

func TestPathParametersAreReadAsTheyStandInThePath(t *testing.T) {
	for _, v := range []struct{ pattern, path, wanted string }{
		{"POST /orders/{id}/refund", "/orders/a%2Fb/refund", "[[id a%2Fb]]"},
		{"POST example.com/files/{path...}", "/files/a/b", "[[path a/b]]"},
		{"POST /orders/{$}", "/orders/", "[]"},
	} {
		if got := fmt.Sprint(pathParams(v.pattern, v.path)); got != v.wanted {
			t.Errorf("%s %s: %s, expected %s", v.pattern, v.path, got, v.wanted)
		}
	}
}

func TestHeadersSurvivePacking(t *testing.T) {
	lines := [][2]string{{"x-part", "one"}, {"x-part", ""}, {"location", "/a"}, {"x-bytes", "caf\xe9 \xff"}, {"x-part", "two"}}
	packed, err := packHeaders(lines)
	check(t, err)
	if got, err := unpackHeaders(packed); err != nil || fmt.Sprint(got) != fmt.Sprint(lines) {
		t.Errorf("%v %v", got, err)
	}
	if _, err := unpackHeaders(packed[:len(packed)-1]); err == nil {
		t.Error("a broken pack was read")
	}
	for _, line := range [][2]string{{"x", "a\r\nb"}, {"x y", "a"}} {
		if _, err := packHeaders([][2]string{line}); err == nil {
			t.Errorf("%q was packed", line)
		}
	}
	dropped := [][2]string{
		{"Set-Cookie", "v"}, {"Date", "v"}, {"Semel-Note", "v"}, {"Proxy-Thing", "v"}, {"X-Hop", "v"}, {"Connection", "close, x-hop"},
	}
	if kept := filterHeaders(append(dropped, [2]string{"Location", "/a"})); fmt.Sprint(kept) != "[[location /a]]" {
		t.Errorf("%v is kept", kept)
	}
}
