package semel

// Runs every vector of spec/vectors that concerns a service.

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

func readVectors[V any](t *testing.T, file string) []V {
	t.Helper()
	text, err := os.ReadFile("../../spec/vectors/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Vectors []V }
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Vectors) == 0 {
		t.Fatal("no vectors in " + file)
	}
	return list.Vectors
}

func decodeBase64(t *testing.T, text string) string {
	t.Helper()
	bytes, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes)
}

func TestKeysAreReadAsTheVectorsSay(t *testing.T) {
	type vector struct {
		Name   string
		Policy struct {
			Sources                  []string
			Syntax, Format, Presence string
			Shared                   bool
		}
		Headers       headerLines
		HeadersBase64 headerLines `json:"headers_base64"`
		Body          *string
		BodyBase64    *string `json:"body_base64"`
		Expect        struct {
			Key, Source, Syntax *string
			Problem             string
		}
	}
	for _, v := range readVectors[vector](t, "keys.json") {
		headers := v.Headers
		for _, line := range v.HeadersBase64 {
			headers = append(headers, [2]string{line[0], decodeBase64(t, line[1])})
		}
		var body []byte
		if v.Body != nil {
			body = []byte(*v.Body)
		} else if v.BodyBase64 != nil {
			body = []byte(decodeBase64(t, *v.BodyBase64))
		}
		policy := keyPolicy{sources: v.Policy.Sources, syntax: v.Policy.Syntax, format: v.Policy.Format, presence: v.Policy.Presence}
		found, problem := policy.read(headers, body)
		if problem == nil && found != nil && v.Policy.Shared && !isRandomUUID(found.key) {
			problem = newProblem("key-too-weak", "")
		}
		switch {
		case problem != nil:
			if problem.Slug != v.Expect.Problem {
				t.Errorf("%s: refused as %s (%s), expected %+v", v.Name, problem.Slug, problem.Detail, v.Expect)
			}
		case v.Expect.Problem != "" || (found == nil) != (v.Expect.Key == nil):
			t.Errorf("%s: found %+v, expected %+v", v.Name, found, v.Expect)
		case found != nil && (found.key != *v.Expect.Key || found.source != *v.Expect.Source || found.syntax != *v.Expect.Syntax):
			t.Errorf("%s: found %+v, expected %s %s %s", v.Name, found, *v.Expect.Key, *v.Expect.Source, *v.Expect.Syntax)
		}
	}
}

func TestScopesAreThoseOfTheVectors(t *testing.T) {
	type vector struct {
		Name                              string
		Tenant, Principal, Endpoint, Host *string
		Identity, Credential              string
		Expect                            string
	}
	for _, v := range readVectors[vector](t, "scopes.json") {
		var got string
		if v.Identity != "" {
			got = hashedPrincipal(v.Identity, v.Credential)
		} else {
			host := v.Host
			if host != nil {
				name := hostOf(*host)
				host = &name
			}
			got = hex.EncodeToString(scopeOf(v.Tenant, v.Principal, v.Endpoint, host))
		}
		if got != v.Expect {
			t.Errorf("%s: %s, expected %s", v.Name, got, v.Expect)
		}
	}
}

func TestFingerprintsAreThoseOfTheVectors(t *testing.T) {
	type vector struct {
		Name                     string
		Inputs, Exclude, Include []string
		SecretHex                *string `json:"secret_hex"`
		Method, Route, Query     string
		Params                   [][2]string
		Principal                *string
		ContentType              *string `json:"content_type"`
		Body                     *string
		BodyBase64               *string `json:"body_base64"`
		Expect                   struct {
			Form        string
			Canonical   *string
			Fingerprint string
			PayloadHash string `json:"payload_hash"`
			Problem     string
		}
	}
	for _, v := range readVectors[vector](t, "fingerprints.json") {
		var body []byte
		if v.Body != nil {
			body = []byte(*v.Body)
		} else if v.BodyBase64 != nil {
			body = []byte(decodeBase64(t, *v.BodyBase64))
		}
		r := recipe{v.Inputs, v.Exclude, v.Include}
		form, problem := r.readBody(v.ContentType, body)
		if problem != nil || v.Expect.Problem != "" {
			if problem == nil || problem.Slug != v.Expect.Problem {
				t.Errorf("%s: %v, expected %+v", v.Name, problem, v.Expect)
			}
			continue
		}
		request := described{method: v.Method, route: v.Route, query: v.Query, params: v.Params}
		if v.Principal != nil {
			request.principal = *v.Principal
		}
		var secret []byte
		if v.SecretHex != nil {
			secret, _ = hex.DecodeString(*v.SecretHex)
		}
		if form.form != v.Expect.Form || v.Expect.Canonical != nil && form.content != *v.Expect.Canonical {
			t.Errorf("%s: %s %q, expected %+v", v.Name, form.form, form.content, v.Expect)
		}
		if got := hex.EncodeToString(r.fingerprint(request, form, secret)); got != v.Expect.Fingerprint {
			t.Errorf("%s: fingerprint %s, expected %s", v.Name, got, v.Expect.Fingerprint)
		}
		if got := hex.EncodeToString(form.payloadHash()); got != v.Expect.PayloadHash {
			t.Errorf("%s: payload hash %s, expected %s", v.Name, got, v.Expect.PayloadHash)
		}
	}
}

// In the vectors a layer asks whether the handler settled; here the library settles itself, so an answer that would be
// "not-settled" is committed with its record, unless its status cannot be recorded at all.
func TestAnswersEndTheTransactionAsTheVectorsSay(t *testing.T) {
	type vector struct {
		Name, Profile, Guarantee string
		Event                    json.RawMessage
		Expect                   string
	}
	seen := 0
	for _, v := range readVectors[vector](t, "dispositions.json") {
		var event struct {
			Status  int
			Outcome string
		}
		if v.Guarantee != "atomic" || json.Unmarshal(v.Event, &event) != nil {
			continue
		}
		seen++
		profile, err := Preset(v.Profile)
		if err != nil {
			t.Fatal(err)
		}
		expected := map[string]ending{"settle": endCommit, "release": endRollBack, "not-settled": endCommit}[v.Expect]
		if v.Expect == "not-settled" && (event.Status >= 500 || profile.releases(event.Status)) {
			expected = endRefuse
		}
		if got := profile.end(event.Status, event.Outcome); got != expected {
			t.Errorf("%s: %v, expected %v", v.Name, got, expected)
		}
	}
	if seen < 100 {
		t.Fatalf("only %d vectors speak of atomic answers", seen)
	}
}

func TestTimestampsAreReadAsTheVectorsSay(t *testing.T) {
	type vector struct {
		Name, Text string
		ExpectMS   *int64 `json:"expect_ms"`
	}
	for _, v := range readVectors[vector](t, "timestamps.json") {
		at, isValid := parseTimestamp(v.Text)
		if isValid != (v.ExpectMS != nil) || isValid && at != *v.ExpectMS {
			t.Errorf("%s: %d %v, expected %v", v.Name, at, isValid, v.ExpectMS)
		}
	}
}

func TestOldActionsAreJudgedAsTheVectorsSay(t *testing.T) {
	type vector struct {
		Name           string
		CapMS          int64 `json:"cap_ms"`
		GraceMS        int64 `json:"grace_ms"`
		Submitted      *string
		SubmittedGapMS *int64 `json:"submitted_gap_ms"`
		GeneratedAt    int64  `json:"generated_at"`
		Now            int64
		Expect         struct{ Verdict string }
	}
	seen := 0
	for _, v := range readVectors[vector](t, "staleness.json") {
		// No preset uses the two options about the time of submission.
		if v.SubmittedGapMS != nil || v.Submitted != nil && *v.Submitted != "ignore" {
			continue
		}
		seen++
		g := guard{cap: time.Duration(v.CapMS) * time.Millisecond, grace: time.Duration(v.GraceMS) * time.Millisecond}
		verdict := map[staleness]string{fresh: "fresh", stale: "stale", fromFuture: "future"}[g.judge(v.GeneratedAt, v.Now)]
		if verdict != v.Expect.Verdict {
			t.Errorf("%s: %s, expected %s", v.Name, verdict, v.Expect.Verdict)
		}
	}
	if seen < 20 {
		t.Fatalf("only %d vectors are without options", seen)
	}
}

func TestProblemsAreThoseOfTheContract(t *testing.T) {
	text, err := os.ReadFile("../../spec/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| ([0-9]{3}) \\| ([a-z-]+) \\| (.+) \\|$")
	listed := map[string]problemKind{}
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		status, _ := strconv.Atoi(match[2])
		listed[match[1]] = problemKind{status, Retry(match[3]), match[4]}
	}
	for slug, kind := range problemKinds {
		if listed[slug] != kind {
			t.Errorf("%s: %+v, the contract says %+v", slug, kind, listed[slug])
		}
	}
}

func TestPresetsHaveTheNumbersOfTheContract(t *testing.T) {
	text, err := os.ReadFile("../../spec/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"ietf", "stripe", "walker", "agents", "scores", "feed", "mesh"}
	rows := map[string][]string{}
	for _, line := range strings.Split(string(text), "\n") {
		if cells := strings.Split(strings.Trim(line, "| "), " | "); len(cells) == 8 {
			rows[cells[0]] = cells[1:]
		}
	}
	for at, name := range names {
		p, err := Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		expect := func(row, got string) {
			if len(rows[row]) != 7 {
				t.Fatalf("the contract has no row %q", row)
			}
			if want := rows[row][at]; want != got {
				t.Errorf("%s, %s: %q, the contract says %q", name, row, got, want)
			}
		}
		expect("format", p.key.format)
		expect("syntax", p.key.syntax)
		expect("presence", p.key.presence)
		expect("error form", map[problemForm]string{
			formProblem: "problem", formEnvelope: "envelope", formError: "error", formMessage: "message", formText: "text", formMesh: "mesh",
		}[p.form])
		expect("retry window", inWords(p.retryWindow))
		expect("skew", inWords(p.skew))
		expect("margin", inWords(p.margin))
		expect("record lives", inWords(p.lifetime()))
		expect("counted from", map[bool]string{true: "created", false: "settled"}[p.fromCreation])
		expect("replay", map[int]string{0: "verbatim", 200: "duplicate 200"}[p.duplicate])
	}
}

// inWords writes a duration as the contract does: 1d1h10m.
func inWords(left time.Duration) string {
	text := ""
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if count := left / unit.size; count > 0 {
			text += strconv.FormatInt(int64(count), 10) + unit.name
			left -= count * unit.size
		}
	}
	if text == "" {
		return "0s"
	}
	return text
}
