package semel

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Problems: what the library refuses, and how it is written on the wire. Every kind has a page under spec/problems.

// Retry says what a client may do after a problem.
type Retry string

const (
	// RetrySameKey: send the same request again with the same key.
	RetrySameKey Retry = "same-key"
	// RetryNewKey: this key is spent; a new intention needs a new key.
	RetryNewKey Retry = "new-key"
	// RetryNever: sending it again unchanged cannot succeed.
	RetryNever Retry = "never"
)

type problemKind struct {
	status int
	retry  Retry
	title  string
}

// problemKinds holds the problems that a server library can meet, as spec/contract.md lists them.
var problemKinds = map[string]problemKind{
	"identity-missing":     {401, RetryNever, "The request has no verified identity"},
	"identity-refused":     {403, RetryNever, "The caller may not send this request"},
	"key-missing":          {400, RetryNever, "An idempotency key is required"},
	"key-invalid":          {400, RetryNever, "The idempotency key is malformed"},
	"key-ambiguous":        {400, RetryNever, "More than one idempotency key was given"},
	"key-too-weak":         {400, RetryNever, "The idempotency key could be guessed"},
	"header-missing":       {400, RetryNever, "A required header is missing or malformed"},
	"body-not-json":        {400, RetryNever, "The body must be JSON here"},
	"body-too-large":       {413, RetryNever, "The body is too large"},
	"timestamp-invalid":    {400, RetryNever, "A timestamp is missing or malformed"},
	"first-sent-in-future": {400, RetryNever, "The first attempt lies in the future"},
	"stale-action":         {422, RetryNever, "The action is too old or too far in the future"},
	"too-old":              {422, RetryNever, "The request was first sent too long ago"},
	"fingerprint-mismatch": {422, RetryNewKey, "The key was used for a different request"},
	"in-flight":            {409, RetrySameKey, "A request with this key is being processed"},
	"too-many-waiters":     {409, RetrySameKey, "Too many requests wait for this key"},
	"outcome-unknown":      {409, RetrySameKey, "It is not known whether the first request took effect"},
	"superseded":           {409, RetrySameKey, "Another attempt holds this key now"},
	"key-sealed":           {409, RetryNewKey, "The key was cancelled"},
	"credential-changed":   {409, RetryNever, "The key was used with another credential"},
	"answer-not-kept":      {409, RetryNever, "The answer to this request was not kept"},
	"admission-limited":    {429, RetrySameKey, "Too many new keys"},
	"overloaded":           {503, RetrySameKey, "Too much work is in progress"},
	"store-unavailable":    {503, RetrySameKey, "The record store cannot be reached"},
	"settlement-pending":   {503, RetrySameKey, "The answer is being recorded"},
	"not-settled":          {500, RetrySameKey, "The handler did not record its answer"},
}

// Problem is one refusal, with the words and fields of this case.
type Problem struct {
	// Slug is the last part of the problem's type, such as "in-flight".
	Slug string
	// Detail says what is wrong in this request; empty where the title says it all.
	Detail string
	// RetryAfter says when to come back; zero where that is not known.
	RetryAfter time.Duration
	// Fields of this kind, shown as they are.
	Fields map[string]any

	cause error
}

// Unwrap is what the database said, where a problem comes from it.
func (p *Problem) Unwrap() error { return p.cause }

func newProblem(slug, detail string) *Problem {
	if _, known := problemKinds[slug]; !known {
		panic("semel: no such problem: " + slug)
	}
	return &Problem{Slug: slug, Detail: detail}
}

func (p *Problem) with(name string, value any) *Problem {
	if p.Fields == nil {
		p.Fields = map[string]any{}
	}
	p.Fields[name] = value
	return p
}

func (p *Problem) after(wait time.Duration) *Problem {
	p.RetryAfter = wait
	return p
}

// Retry says what the client may do.
func (p *Problem) Retry() Retry { return problemKinds[p.Slug].retry }

// Error is the problem in one line.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return problemKinds[p.Slug].title
	}
	return problemKinds[p.Slug].title + ": " + p.Detail
}

// wording is what a profile says differently about one kind of problem.
type wording struct{ code, text string }

// render writes a problem in the profile's form.
func (p *Profile) render(problem *Problem, requestID string) Answer {
	status := problemKinds[problem.Slug].status
	if problem.Slug == "fingerprint-mismatch" {
		status = p.mismatchStatus
	}
	contentType, body := p.renderBody(problem, status, requestID)
	shouldRetry := strconv.FormatBool(problem.Retry() == RetrySameKey)
	headers := [][2]string{
		{"content-type", contentType},
		{"link", "</.well-known/semel/problems/" + problem.Slug + `>; rel="describedby"`},
		{"x-should-retry", shouldRetry},
	}
	if problem.RetryAfter > 0 {
		headers = append(headers, [2]string{"retry-after", strconv.FormatInt(wholeSeconds(problem.RetryAfter), 10)})
	}
	if p.stripeHeaders {
		headers = append(headers, [2]string{"stripe-should-retry", shouldRetry})
	}
	if _, unknown := problem.Fields["outcome"]; unknown {
		headers = append(headers, [2]string{"semel-outcome", "unknown"})
	}
	return Answer{Status: status, Headers: headers, Body: body}
}

func (p *Profile) renderBody(problem *Problem, status int, requestID string) (string, []byte) {
	fields := problem.Fields
	if fields == nil {
		fields = map[string]any{}
	}
	text := p.wording[problem.Slug].text
	if text == "" {
		text = problem.Error()
	}
	code := p.wording[problem.Slug].code
	switch p.form {
	case formEnvelope:
		if code == "" {
			code = strings.ToUpper(strings.ReplaceAll(problem.Slug, "-", "_"))
		}
		return "application/json", encodeJSON(map[string]any{
			"error": code, "message": text, "details": fields, "requestId": requestID,
		})
	case formError:
		body := map[string]any{"error": text}
		if problem.RetryAfter > 0 {
			body["retry_after"] = problem.RetryAfter.Milliseconds()
		}
		return "application/json", encodeJSON(body)
	case formMessage:
		body := map[string]any{"message": text}
		if !strings.Contains(text, problem.Detail) {
			body["detail"] = problem.Detail
		}
		return "application/json", encodeJSON(body)
	case formText:
		return "text/plain; charset=utf-8", []byte(text)
	case formMesh:
		body := map[string]any{"reason": text}
		for name, value := range fields {
			body[name] = value
		}
		if code == "" {
			code = strings.ReplaceAll(problem.Slug, "-", "_")
		}
		body["error"] = code
		return "application/json", encodeJSON(body)
	default:
		return "application/problem+json", encodeJSON(problemJSON(problem, status, requestID))
	}
}

func problemJSON(problem *Problem, status int, requestID string) map[string]any {
	kind := problemKinds[problem.Slug]
	body := map[string]any{
		"type": "urn:semel:problem:" + problem.Slug, "title": kind.title, "status": status,
		"retry": string(kind.retry), "request_id": requestID,
	}
	if problem.Detail != "" {
		body["detail"] = problem.Detail
	}
	if problem.RetryAfter > 0 {
		body["retry_after"] = wholeSeconds(problem.RetryAfter)
	}
	if len(problem.Fields) > 0 {
		body["details"] = problem.Fields
	}
	return body
}

// wholeSeconds rounds up: coming back early would only be refused again.
func wholeSeconds(wait time.Duration) int64 {
	return int64((wait + time.Second - 1) / time.Second)
}

func encodeJSON(value any) []byte {
	body, err := json.Marshal(value)
	if err != nil {
		panic("semel: " + err.Error())
	}
	return body
}
