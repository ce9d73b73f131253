package semel

// What the live tests have in common: a database of their own, child processes, and the service of spec/once.md.

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

// TestMain runs the service instead of the tests where it is started as a child.
func TestMain(m *testing.M) {
	if os.Getenv("SEMEL_SERVICE_PORT") != "" {
		runService()
		return
	}
	code := m.Run()
	if migrated.drop != nil {
		migrated.drop()
	}
	os.Exit(code)
}

// migrated is the database that the tests' own are copied from.
var migrated struct {
	sync.Once
	name string
	drop func()
}

func required(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set; see clients/go/test.sh", name)
	}
	return value
}

// times is how often a process is killed at each step.
func times() int {
	if os.Getenv("SEMEL_TEST_LONG") == "1" {
		return 20
	}
	return 3
}

// makeDatabase makes a database with semel's schema for one test.
func makeDatabase(t testing.TB, statements ...string) (string, *sql.DB) {
	t.Helper()
	place, err := url.Parse(required(t, "SEMEL_TEST_POSTGRES"))
	check(t, err)
	admin, err := sql.Open("pgx", place.String())
	check(t, err)
	migrated.Do(func() {
		name := fmt.Sprintf("semel_go_%d", os.Getpid())
		_, err := admin.Exec("CREATE DATABASE " + name)
		check(t, err)
		migrated.drop = func() {
			admin, _ := sql.Open("pgx", os.Getenv("SEMEL_TEST_POSTGRES"))
			_, _ = admin.Exec("DROP DATABASE " + name + " WITH (FORCE)")
		}
		place.Path = "/" + name
		output, err := exec.Command(required(t, "SEMEL_BIN"), "migrate", "--store", place.String()).CombinedOutput()
		if err != nil {
			t.Fatalf("semel migrate: %v\n%s", err, output)
		}
		migrated.name = name
	})
	if migrated.name == "" {
		t.Fatal("no database could be prepared")
	}
	name := fmt.Sprintf("%s_%d", migrated.name, time.Now().UnixNano())
	_, err = admin.Exec("CREATE DATABASE " + name + " TEMPLATE " + migrated.name)
	check(t, err)
	place.Path = "/" + name
	db, err := sql.Open("pgx", place.String())
	check(t, err)
	db.SetMaxOpenConns(10)
	for _, statement := range statements {
		_, err := db.Exec(statement)
		check(t, err)
	}
	t.Cleanup(func() {
		db.Close()
		_, err := admin.Exec("DROP DATABASE " + name + " WITH (FORCE)")
		check(t, err)
		admin.Close()
	})
	return place.String(), db
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func countRows(t testing.TB, db *sql.DB, from string, args ...any) int {
	t.Helper()
	var count int
	check(t, db.QueryRow("SELECT count(*) FROM "+from, args...).Scan(&count))
	return count
}

// eventually waits for a condition, not for a time.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("not within a minute: " + what)
		}
	}
}

func freePort(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// child is a service in a process of its own.
type child struct {
	command *exec.Cmd
	base    string
}

func startService(t testing.TB, port, database, dieAt string) *child {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), "SEMEL_SERVICE_PORT="+port, "SEMEL_SERVICE_POSTGRES="+database, "SEMEL_SERVICE_DIE_AT="+dieAt)
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	check(t, err)
	check(t, command.Start())
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatalf("the service did not start: %v", err)
	}
	return &child{command, "http://127.0.0.1:" + port}
}

// kill ends the process and waits for its end.
func (c *child) kill() {
	_ = c.command.Process.Kill()
	_ = c.command.Wait()
}

// die kills this very process where it was asked to.
func die(step string) {
	if step == os.Getenv("SEMEL_SERVICE_DIE_AT") {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// runService is the service of spec/once.md.
func runService() {
	db, err := sql.Open("pgx", os.Getenv("SEMEL_SERVICE_POSTGRES"))
	if err != nil {
		panic(err)
	}
	db.SetMaxOpenConns(20)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ready") })
	identify := func(r *http.Request) (Caller, error) {
		return Caller{Principal: r.Header.Get("X-User"), Tenant: r.Header.Get("X-Tenant")}, nil
	}
	for _, name := range []string{"ietf", "stripe", "walker", "agents", "scores", "feed", "mesh"} {
		profile, err := Preset(name)
		if err != nil {
			panic(err)
		}
		once := New(db, Options{Profile: &profile})
		once.step = die
		route := Route{Endpoint: "create-order", Identify: identify}
		mux.Handle("POST /"+name+"/orders/{id}", once.Handle(route, playScript))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("SEMEL_SERVICE_PORT"))
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	panic(http.Serve(listener, mux))
}

type content struct {
	Body       *string
	BodyBase64 *string `json:"body_base64"`
	BodyRepeat *struct {
		Text  string
		Times int
	} `json:"body_repeat"`
}

func (c content) bytes(otherwise string) []byte {
	switch {
	case c.BodyRepeat != nil:
		return []byte(strings.Repeat(c.BodyRepeat.Text, c.BodyRepeat.Times))
	case c.BodyBase64 != nil:
		bytes, err := base64.StdEncoding.DecodeString(*c.BodyBase64)
		if err != nil {
			panic(err)
		}
		return bytes
	case c.Body != nil:
		return []byte(*c.Body)
	default:
		return []byte(otherwise)
	}
}

type script struct {
	Run      string
	Attempts []struct {
		Effects                               []string
		Hold                                  *int
		RaiseSQL, SwallowSQL, Statement, Rais string
		Answer                                struct {
			Status  int
			Headers [][2]string
			content
		}
	}
}

// playScript does in its transaction what the request's X-Once header says.
func playScript(tx *sql.Tx, w http.ResponseWriter, r *http.Request) error {
	// The names of the script's members have underscores, which encoding/json does not overlook.
	text := strings.NewReplacer(`"raise_sql"`, `"RaiseSQL"`, `"swallow_sql"`, `"SwallowSQL"`, `"raise":`, `"Rais":`).Replace(r.Header.Get("X-Once"))
	var s script
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	ctx := r.Context()
	var number int
	if err := tx.QueryRowContext(ctx, `SELECT nextval('"`+s.Run+`"')`).Scan(&number); err != nil {
		return err
	}
	attempt := s.Attempts[min(number, len(s.Attempts))-1]
	for _, name := range attempt.Effects {
		if _, err := tx.ExecContext(ctx, "INSERT INTO once_effect (run, name) VALUES ($1, $2)", s.Run, name); err != nil {
			return err
		}
	}
	die("handling")
	if attempt.Hold != nil {
		if err := runStatement(ctx, tx, fmt.Sprintf("SELECT pg_advisory_xact_lock_shared(%d)", *attempt.Hold)); err != nil {
			return err
		}
	}
	if attempt.RaiseSQL != "" {
		return runStatement(ctx, tx, "SELECT once_raise('"+attempt.RaiseSQL+"')")
	}
	if attempt.SwallowSQL != "" {
		_ = runStatement(ctx, tx, "SELECT once_raise('"+attempt.SwallowSQL+"')")
	}
	if attempt.Statement != "" {
		if err := runStatement(ctx, tx, attempt.Statement); err != nil {
			return err
		}
	}
	if attempt.Rais != "" {
		return errors.New(attempt.Rais)
	}
	for _, line := range attempt.Answer.Headers {
		w.Header().Add(line[0], line[1])
	}
	w.WriteHeader(attempt.Answer.Status)
	_, err := w.Write(attempt.Answer.bytes(""))
	return err
}

func runStatement(ctx context.Context, tx *sql.Tx, statement string) error {
	_, err := tx.ExecContext(ctx, statement)
	return err
}
