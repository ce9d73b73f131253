package semel

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
)

// net/http: reads a request, hands the handler its transaction, and sends the answer after the commit.

// answerBytesMax is the largest answer that is held in memory before the commit.
const answerBytesMax = 64 << 20

// Route says what a handler is called and who its callers are.
type Route struct {
	// Endpoint is the stable name of the operation, such as "create-order".
	Endpoint string
	// Was lists former names of the endpoint.
	Was []string
	// Identify says who sent a request, after authentication. An error, or an empty principal, is answered 401.
	Identify func(r *http.Request) (Caller, error)
}

// HandlerFunc handles a request in a transaction that it neither commits nor rolls back. What it writes is held back
// until the commit. An error rolls back and is answered 500; it may run again after a serialisation failure.
type HandlerFunc func(tx *sql.Tx, w http.ResponseWriter, r *http.Request) error

// Handle makes an http.Handler that runs once for each key.
func (o *Once) Handle(route Route, handle HandlerFunc) http.Handler {
	if route.Endpoint == "" || route.Identify == nil {
		panic("semel: a route needs an Endpoint and Identify")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requestID := r.Header.Get("X-Request-Id")
		if requestID == "" {
			requestID = "req-" + hex.EncodeToString(random(8))
		}
		answer, err := o.serve(route, handle, r, requestID)
		if err != nil {
			answer = o.explain(err, r, requestID)
		}
		send(w, answer)
	})
}

type txKey struct{}

// Tx is the transaction of the request, for handlers under Middleware.
func Tx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}

// Middleware runs any http.Handler once for each key. The handler takes its transaction from Tx(r.Context()). Unlike
// Handle, it cannot see the handler's database errors, and so does not run it again after a serialisation failure.
func (o *Once) Middleware(route Route) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return o.Handle(route, func(tx *sql.Tx, w http.ResponseWriter, r *http.Request) error {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), txKey{}, tx)))
			return nil
		})
	}
}

func (o *Once) serve(route Route, handle HandlerFunc, r *http.Request, requestID string) (Answer, error) {
	caller, err := route.Identify(r)
	if err != nil {
		return Answer{}, newProblem("identity-missing", err.Error())
	}
	// One byte more than is taken tells that there is more; the server reads the rest away after the answer.
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(o.profile.maxBody)+1))
	if err != nil {
		return Answer{}, err
	}
	request := Request{
		Endpoint: route.Endpoint, Was: route.Was, Caller: caller, Method: r.Method, Query: r.URL.RawQuery,
		Params: pathParams(r.Pattern, r.URL.EscapedPath()), Headers: linesOf(r.Header), Body: body,
		RequestID: requestID,
	}
	return o.Do(r.Context(), request, func(ctx context.Context, tx *sql.Tx) (Answer, error) {
		again := r.WithContext(ctx)
		again.Body = io.NopCloser(bytes.NewReader(body))
		recorder := &recorder{header: http.Header{}}
		if err := handle(tx, recorder, again); err != nil {
			return Answer{}, err
		}
		return recorder.answer()
	})
}

// explain makes an answer of an error: the profile's form of a problem, or a plain 500.
func (o *Once) explain(err error, r *http.Request, requestID string) Answer {
	var problem *Problem
	if !errors.As(err, &problem) && (errors.Is(err, driver.ErrBadConn) || sqlState(err) != "" && isAway(err)) {
		problem = storeAway(err)
	}
	if problem == nil {
		slog.Error("the handler failed; its transaction was rolled back", "path", r.URL.Path, "error", err)
		answer := Answer{
			Status: 500, Headers: [][2]string{{"content-type", "text/plain; charset=utf-8"}}, Body: []byte("Internal Server Error\n"),
		}
		return o.profile.mark(answer, "atomic")
	}
	return o.profile.mark(o.profile.render(problem, requestID), "atomic")
}

func send(w http.ResponseWriter, answer Answer) {
	for _, line := range answer.Headers {
		w.Header().Add(line[0], line[1])
	}
	w.WriteHeader(answer.Status)
	// The client may have gone; the record has its answer.
	_, _ = w.Write(answer.Body)
}

// linesOf lists headers in a fixed order, so that equal headers are packed alike.
func linesOf(header http.Header) [][2]string {
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	slices.Sort(names)
	var lines [][2]string
	for _, name := range names {
		for _, value := range header[name] {
			lines = append(lines, [2]string{name, value})
		}
	}
	return lines
}

// recorder holds an answer back until the commit.
type recorder struct {
	header http.Header
	sent   [][2]string
	status int
	body   bytes.Buffer
	err    error
}

func (w *recorder) Header() http.Header { return w.header }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status, w.sent = status, linesOf(w.header)
	}
}

func (w *recorder) Write(part []byte) (int, error) {
	if w.header.Get("Content-Type") == "" && w.status == 0 {
		w.header.Set("Content-Type", http.DetectContentType(part))
	}
	w.WriteHeader(http.StatusOK)
	if w.body.Len()+len(part) > answerBytesMax {
		w.err = errors.New("semel: the answer is too large to be held until the commit")
		return 0, w.err
	}
	return w.body.Write(part)
}

func (w *recorder) answer() (Answer, error) {
	w.WriteHeader(http.StatusOK)
	return Answer{Status: w.status, Headers: w.sent, Body: w.body.Bytes()}, w.err
}

// pathParams are the parameters of a ServeMux pattern as they stand in the path, percent-encoding untouched.
func pathParams(pattern, path string) [][2]string {
	at := strings.IndexByte(pattern, '/')
	if at < 0 {
		return nil
	}
	names, values := strings.Split(pattern[at:], "/"), strings.Split(path, "/")
	var params [][2]string
	for place, segment := range names {
		if !strings.HasPrefix(segment, "{") || segment == "{$}" || place >= len(values) {
			continue
		}
		name, isRest := strings.CutSuffix(strings.Trim(segment, "{}"), "...")
		value := values[place]
		if isRest {
			value = strings.Join(values[place:], "/")
		}
		params = append(params, [2]string{name, value})
	}
	return params
}
