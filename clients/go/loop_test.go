package semel

// Runs the loop of docs/guides/clients.md as it stands there.

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

const loopMain = `package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	answer, err := SendOnce(context.Background(), os.Args[1], "demo", "one", []byte("{}"))
	if err != nil {
		panic(err)
	}
	fmt.Print(answer.StatusCode)
}

`

func TestTheLoopOfTheGuideAsksAgainWhileTheFirstAttemptRuns(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guides/clients.md")
	check(t, err)
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(guide)
	place := filepath.Join(t.TempDir(), "main.go")
	check(t, os.WriteFile(place, append([]byte(loopMain), block[1]...), 0o644))
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		switch len(keys) {
		case 1:
			w.Header().Set("Semel-Outcome", "pending")
			w.WriteHeader(http.StatusAccepted)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	}))
	defer server.Close()
	output, err := exec.Command("go", "run", place, server.URL).CombinedOutput()
	if err != nil || string(output) != "201" || fmt.Sprint(keys) != "[one one one]" {
		t.Errorf("%v, %s, %v", err, output, keys)
	}
}
