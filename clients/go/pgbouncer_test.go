package semel

// Behind pgbouncer in transaction mode, where statements of one session may run on many connections.

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

func TestBehindPgbouncerInTransactionModeAKeyTakesEffectOnce(t *testing.T) {
	if os.Getenv("SEMEL_TEST_PGBOUNCER") == "missing" {
		t.Skip("pgbouncer is not here and cannot be installed")
	}
	direct, db := makeDatabase(t, effectTable)
	place, err := url.Parse(direct)
	check(t, err)
	target := place.Port()
	if target == "" {
		target = "5432"
	}
	port := freePort(t)
	directory, err := os.MkdirTemp("/tmp", "semel-pgbouncer-")
	check(t, err)
	defer os.RemoveAll(directory)
	check(t, os.Chmod(directory, 0o755))
	file := filepath.Join(directory, "pgbouncer.ini")
	settings := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
`, place.Hostname(), target, place.User.Username(), port)
	check(t, os.WriteFile(file, []byte(settings), 0o644))
	arguments := []string{"-q", file}
	if os.Getuid() == 0 {
		// It refuses to run as root.
		arguments = append([]string{"-u", "nobody"}, arguments...)
	}
	command := exec.Command("pgbouncer", arguments...)
	check(t, command.Start())
	defer func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	}()
	place.Host = "127.0.0.1:" + port
	place.RawQuery = "default_query_exec_mode=exec"
	behind, err := sql.Open("pgx", place.String())
	check(t, err)
	defer behind.Close()
	eventually(t, "pgbouncer answers", func() bool { return behind.Ping() == nil })
	once := New(behind, Options{})
	for range 5 {
		key := newUUID()
		var all []chan outcome
		for range 20 {
			all = append(all, doLater(once, order(key), insert(key, "ok")))
		}
		for _, one := range all {
			if got := <-one; got.err != nil || string(got.answer.Body) != "ok" {
				t.Fatalf("%+v", got)
			}
		}
		expectEffects(t, db, key, 1)
	}
}
