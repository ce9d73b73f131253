package semel

// Runs the program of docs/guides/once-go.md as it stands there, and compiles its other Go code.

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

func TestTheGuidesProgramTakesEffectOnce(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guides/once-go.md")
	check(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(guide, -1)
	if len(blocks) != 2 {
		t.Fatalf("the guide has %d blocks of Go", len(blocks))
	}
	// The second block is the inside of a function.
	inside := append([]byte("package main\n\nimport (\n\t\"context\"\n\t\"database/sql\"\n\n\tsemel \"github.com/semel/semel/clients/go\"\n)\n\n"+
		"func importOrder(ctx context.Context, once *semel.Once, key string) (semel.Answer, error) {\n"), blocks[1][1]...)
	inside = append(inside, "\treturn answer, err\n}\n\nvar _ = importOrder\n"...)
	place := filepath.Join("target", "guide")
	check(t, os.MkdirAll(place, 0o755))
	check(t, os.WriteFile(filepath.Join(place, "main.go"), blocks[0][1], 0o644))
	check(t, os.WriteFile(filepath.Join(place, "import.go"), inside, 0o644))
	binary := filepath.Join(t.TempDir(), "guide")
	if output, err := exec.Command("go", "build", "-o", binary, "./"+place).CombinedOutput(); err != nil {
		t.Fatalf("the guide does not compile: %v\n%s", err, output)
	}
	url, db := makeDatabase(t, "CREATE TABLE orders (id serial PRIMARY KEY, item text NOT NULL)")
	port := freePort(t)
	command := exec.Command(binary)
	command.Env = append(os.Environ(), "DATABASE_URL="+url, "PORT="+port)
	check(t, command.Start())
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}()
	send := func() reply {
		request, err := http.NewRequest("POST", "http://127.0.0.1:"+port+"/orders", bytes.NewReader([]byte(`{"item":"tea"}`)))
		check(t, err)
		request.Header.Set("Idempotency-Key", "one")
		request.Header.Set("X-User", "alice")
		return exchange(request)
	}
	var first reply
	eventually(t, "the program answers", func() bool { first = send(); return first.err == nil })
	second := send()
	if first.status != 201 || !bytes.Equal(first.body, second.body) || second.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%+v, then %+v", first, second)
	}
	if count := countRows(t, db, "orders"); count != 1 {
		t.Errorf("%d orders", count)
	}
}
