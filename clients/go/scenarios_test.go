package semel

// Runs the scenarios of spec/once.json against the service, as spec/once.md says.

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

type wanted struct {
	Profile, Path, Query string
	User                 *string
	Tenant               string
	Key                  *string
	KeyAs                string `json:"key_as"`
	KeyHeader            string `json:"key_header"`
	Headers              [][2]string
	ContentType          string `json:"content_type"`
	Attempts             json.RawMessage
	content
	hasUser, hasKey bool
}

// UnmarshalJSON tells a member that is null from one that is not there.
func (w *wanted) UnmarshalJSON(text []byte) error {
	type plain wanted
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return err
	}
	if err := json.Unmarshal(text, (*plain)(w)); err != nil {
		return err
	}
	_, w.hasUser = members["user"]
	_, w.hasKey = members["key"]
	return nil
}

type expected struct {
	Status      int
	Replayed    *bool
	Guarantee   string
	Problem     string
	ShouldRetry string `json:"should_retry"`
	Headers     map[string]string
	Lines       [][2]string
	Absent      []string
	JSON        map[string]any
	Details     map[string]any
	SameAs      string `json:"same_as"`
	NoAnswer    bool   `json:"no_answer"`
	content
}

type step struct {
	Send, Start         *wanted
	Finish, SQL, Commit string
	Lock, Unlock, Held  *int
	As                  string
	Host                *string
	Expect              expected
}

type scenario struct {
	Name    string
	Steps   []step
	Effects map[string]int
	Runs    *int
}

type suite struct {
	Schema     []string
	Operations map[string]string
	Scenarios  []scenario
}

func readSuite(t testing.TB) suite {
	t.Helper()
	text, err := os.ReadFile("../../spec/once.json")
	check(t, err)
	var s suite
	check(t, json.Unmarshal(text, &s))
	return s
}

// reply is an answer as the client got it.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// bench is a service behind the proxy, which is started again when it was killed.
type bench struct {
	url, through, port string
	db                 *sql.DB
	proxy              *proxy
	child              *child
	suite              suite
}

func startBench(t *testing.T) *bench {
	s := readSuite(t)
	url, db := makeDatabase(t, s.Schema...)
	proxy, through := startProxy(t, url)
	b := &bench{url: url, through: through, port: freePort(t), db: db, proxy: proxy, suite: s}
	b.child = startService(t, b.port, through, "")
	t.Cleanup(func() { b.child.kill() })
	return b
}

func TestTheScenariosOfOnce(t *testing.T) {
	b := startBench(t)
	for _, s := range b.suite.Scenarios {
		t.Run(s.Name, func(t *testing.T) { b.runScenario(t, s) })
	}
}

func TestAServiceThatIsKilledAroundCommitLeavesEffectAndRecordTogether(t *testing.T) {
	b := startBench(t)
	for _, s := range b.suite.Scenarios {
		isKill := slices.ContainsFunc(s.Steps, func(s step) bool { return strings.HasPrefix(s.Commit, "kill-") })
		for time := 0; isKill && time < times(); time++ {
			t.Run(s.Name, func(t *testing.T) { b.runScenario(t, s) })
		}
	}
}

// running is a scenario that is being run.
type running struct {
	*testing.T
	*bench
	run      string
	names    map[string]string
	attempts json.RawMessage
	answers  map[string]reply
	pending  map[string]chan reply
	locks    map[int]*sql.Conn
}

func (b *bench) runScenario(t *testing.T, s scenario) {
	key := newUUID()
	r := &running{
		T: t, bench: b, run: "once_" + strings.ReplaceAll(key, "-", ""), answers: map[string]reply{},
		names:   map[string]string{"key": key, "now": time.Now().UTC().Format(time.RFC3339Nano)},
		pending: map[string]chan reply{}, locks: map[int]*sql.Conn{},
	}
	_, err := b.db.Exec(`CREATE SEQUENCE "` + r.run + `"`)
	check(t, err)
	defer func() {
		for number := range r.locks {
			r.unlock(number)
		}
	}()
	for _, step := range s.Steps {
		r.take(step)
	}
	for name, count := range s.Effects {
		if got := countRows(t, b.db, "once_effect WHERE run = $1 AND name = $2", r.run, name); got != count {
			t.Errorf("%d effects of %s, expected %d", got, name, count)
		}
	}
	if s.Runs != nil {
		var runs int
		check(t, b.db.QueryRow(`SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM "`+r.run+`"`).Scan(&runs))
		if runs != *s.Runs {
			t.Errorf("the handler ran %d times, expected %d", runs, *s.Runs)
		}
	}
	if b.proxy.isArmed() {
		t.Error("the proxy was prepared for a COMMIT that never came")
	}
}

func newUUID() string { return (&Once{}).mintKey() }

func (r *running) fill(text string) string {
	for name, value := range r.names {
		text = strings.ReplaceAll(text, "{"+name+"}", value)
	}
	return text
}

func (r *running) take(s step) {
	switch {
	case s.Send != nil:
		r.compare(s, <-r.begin(s.Send))
	case s.Start != nil:
		r.pending[s.As] = r.begin(s.Start)
	case s.Finish != "":
		s.As = s.Finish
		r.compare(s, <-r.pending[s.Finish])
	case s.Lock != nil:
		conn, err := r.db.Conn(context.Background())
		check(r, err)
		_, err = conn.ExecContext(context.Background(), "SELECT pg_advisory_lock($1)", *s.Lock)
		check(r, err)
		r.locks[*s.Lock] = conn
	case s.Unlock != nil:
		r.unlock(*s.Unlock)
	case s.Held != nil:
		eventually(r, "a handler waits for the lock", func() bool {
			from := `pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
			return countRows(r, r.db, from, *s.Held) > 0
		})
	case s.SQL != "":
		r.operate(s)
	case s.Commit != "":
		r.proxy.arm(s.Commit, func() { r.child.kill() })
	default:
		r.Fatalf("no such step: %+v", s)
	}
}

func (r *running) unlock(number int) {
	conn := r.locks[number]
	if conn == nil {
		return
	}
	_, err := conn.ExecContext(context.Background(), "SELECT pg_advisory_unlock($1)", number)
	check(r, err)
	check(r, conn.Close())
	delete(r.locks, number)
}

func (r *running) operate(s step) {
	alice, endpoint := "alice", "create-order"
	scope := scopeOf(nil, &alice, &endpoint, s.Host)
	statement := strings.NewReplacer(
		"{id}", fmt.Sprintf(`'\x%x'::bytea`, idOf(scope, r.names["key"])), "{scope}", fmt.Sprintf(`'\x%x'::bytea`, scope),
		"{key}", "'"+r.names["key"]+"'", "{endpoint}", "'create-order'", "{principal}", "'alice'",
	).Replace(r.suite.Operations[s.SQL])
	if s.As == "" {
		_, err := r.db.Exec(statement)
		check(r, err)
		return
	}
	var result string
	check(r, r.db.QueryRow(statement).Scan(&result))
	r.names[s.As] = result
}

func (r *running) begin(w *wanted) chan reply {
	if w.Attempts != nil {
		r.attempts = w.Attempts
	}
	or := func(text, otherwise string) string {
		if text == "" {
			return otherwise
		}
		return text
	}
	body := w.bytes(`{"amount":5}`)
	if w.Body != nil {
		body = []byte(r.fill(*w.Body))
	}
	place := r.child.base + "/" + or(w.Profile, "ietf") + or(w.Path, "/orders/1")
	if w.Query != "" {
		place += "?" + w.Query
	}
	request, err := http.NewRequest("POST", place, bytes.NewReader(body))
	check(r, err)
	request.Header.Set("Content-Type", or(w.ContentType, "application/json"))
	request.Header.Set("X-Once", asciiJSON(fmt.Sprintf(`{"run":%q,"attempts":%s}`, r.run, r.attempts)))
	if !w.hasUser {
		request.Header.Set("X-User", "alice")
	} else if w.User != nil {
		request.Header.Set("X-User", *w.User)
	}
	if w.Tenant != "" {
		request.Header.Set("X-Tenant", w.Tenant)
	}
	if !w.hasKey || w.Key != nil {
		key := "{key}"
		if w.Key != nil {
			key = *w.Key
		}
		request.Header.Add(or(w.KeyHeader, "Idempotency-Key"), r.fill(or(w.KeyAs, key)))
	}
	for _, line := range w.Headers {
		request.Header.Add(line[0], r.fill(line[1]))
	}
	answer := make(chan reply, 1)
	go func() { answer <- exchange(request) }()
	return answer
}

// asciiJSON writes JSON as a header's value has to be: in one line, and in ASCII.
func asciiJSON(text string) string {
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		panic(err)
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	var out strings.Builder
	for _, c := range string(encoded) {
		if c < 0x7f {
			out.WriteRune(c)
		} else {
			fmt.Fprintf(&out, `\u%04x`, c)
		}
	}
	return out.String()
}

func exchange(request *http.Request) reply {
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return reply{err: err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, body, err}
}

func (r *running) compare(s step, got reply) {
	r.Helper()
	e := s.Expect
	if e.NoAnswer {
		if got.err == nil {
			r.Fatalf("the connection should have broken, but the service said %d %s", got.status, got.body)
		}
		r.child.kill()
		r.child = startService(r, r.port, r.through, "")
		return
	}
	check(r, got.err)
	r.answers[s.As] = got
	seen := fmt.Sprintf("%d %v %.500s", got.status, got.header, got.body)
	values := func(name string) []string { return got.header.Values(name) }
	expect := func(what string, is bool) {
		r.Helper()
		if !is {
			r.Errorf("%s is not as expected in %+v: %s", what, e, seen)
		}
	}
	expect("status", e.Status == 0 || got.status == e.Status)
	expect("replayed", e.Replayed == nil || (len(values("Idempotency-Replayed")) == 1) == *e.Replayed)
	expect("guarantee", e.Guarantee == "" || slices.Equal(values("Semel-Guarantee"), []string{e.Guarantee}))
	page := `</.well-known/semel/problems/` + e.Problem + `>; rel="describedby"`
	expect("problem", e.Problem == "" || slices.Equal(values("Link"), []string{page}))
	expect("should_retry", e.ShouldRetry == "" || slices.Equal(values("X-Should-Retry"), []string{e.ShouldRetry}))
	for name, value := range e.Headers {
		expect(name, slices.Equal(values(name), []string{value}))
	}
	lines := map[string][]string{}
	for _, line := range e.Lines {
		lines[line[0]] = append(lines[line[0]], line[1])
	}
	for name, wanted := range lines {
		expect(name, slices.Equal(values(name), wanted))
	}
	for _, name := range e.Absent {
		expect("absence of "+name, len(values(name)) == 0)
	}
	if e.Body != nil || e.BodyBase64 != nil || e.BodyRepeat != nil {
		expect("body", bytes.Equal(got.body, e.bytes("")))
	}
	r.compareJSON(e, got, expect)
	if e.SameAs != "" {
		first := r.answers[e.SameAs]
		expect("sameness", got.status == first.status && bytes.Equal(got.body, first.body))
	}
}

func (r *running) compareJSON(e expected, got reply, expect func(string, bool)) {
	if len(e.JSON)+len(e.Details) == 0 {
		return
	}
	var body map[string]any
	check(r, json.Unmarshal(got.body, &body))
	details, _ := body["details"].(map[string]any)
	for name, value := range e.JSON {
		expect(name, fmt.Sprint(body[name]) == fmt.Sprint(value))
	}
	for name, value := range e.Details {
		expect(name, fmt.Sprint(details[name]) == fmt.Sprint(value))
	}
}
