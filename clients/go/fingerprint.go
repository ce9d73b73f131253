package semel

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net"
	"slices"
	"strings"
)

// Scopes, ids and fingerprints: the bytes by which every implementation of the contract recognises a request.

func lengthPrefixed(out []byte, part string) []byte {
	return append(binary.BigEndian.AppendUint64(out, uint64(len(part))), part...)
}

// scopeOf hashes those of tenant, principal, endpoint and host that are there.
func scopeOf(tenant, principal, endpoint, host *string) []byte {
	message := lengthPrefixed(nil, "semel.scope.1")
	for at, part := range []*string{tenant, principal, endpoint, host} {
		if part != nil {
			message = lengthPrefixed(append(message, "tpeh"[at]), *part)
		}
	}
	sum := sha256.Sum256(message)
	return sum[:]
}

// hostOf is a host as it counts in scopes: in lower case, without port and last dot; an address names nobody.
func hostOf(text string) string {
	if at := strings.LastIndexByte(text, ':'); at >= 0 {
		name, port := text[:at], text[at+1:]
		isPort := port != "" && strings.Trim(port, "0123456789") == ""
		if isPort && (!strings.Contains(name, ":") || strings.HasSuffix(name, "]")) {
			text = name
		}
	}
	text = strings.ToLower(strings.TrimSuffix(text, "."))
	bare := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		bare = text[1 : len(text)-1]
	}
	if bare == "localhost" || net.ParseIP(bare) != nil {
		return ""
	}
	return text
}

// idOf stands for a scope and key in the store: 16 bytes.
func idOf(scope []byte, key string) []byte {
	sum := sha256.Sum256(append(slices.Clip(scope), key...))
	return sum[:16]
}

// hashedPrincipal is the principal of a credential that is known by its hash alone.
func hashedPrincipal(identity, credential string) string {
	sum := sha256.Sum256([]byte(strings.Trim(credential, " \t")))
	return identity + ":" + hex.EncodeToString(sum[:])
}

// recipe says what a fingerprint is made of.
type recipe struct {
	inputs  []string
	exclude []string
	include []string
}

// described is what a fingerprint says of a request beside its body.
type described struct {
	method, route, query, principal string
	params                          [][2]string
}

// bodyForm is a body as it counts: none, json or raw, with its content after the pointers.
type bodyForm struct {
	form    string
	content string
}

func (b bodyForm) payloadHash() []byte {
	sum := sha256.Sum256([]byte(b.content))
	return sum[:]
}

// isJSONType tells whether a Content-Type may be JSON; nil stands for an absent one.
func isJSONType(contentType *string) bool {
	if contentType == nil {
		return true
	}
	essence, _, _ := strings.Cut(*contentType, ";")
	essence = strings.ToLower(strings.Trim(essence, " \t"))
	return essence == "application/json" || strings.HasSuffix(essence, "+json")
}

// readBody finds the form of a body.
func (r *recipe) readBody(contentType *string, body []byte) (bodyForm, *Problem) {
	if len(body) == 0 {
		return bodyForm{form: "none"}, nil
	}
	if isJSONType(contentType) {
		if document, err := parseJSON(body); err == nil && document.isCanonical() {
			return bodyForm{"json", r.applyPointers(document.root).canonical()}, nil
		}
	}
	if len(r.exclude)+len(r.include) > 0 {
		return bodyForm{}, newProblem("body-not-json", "parts of the body count here, so it must be plain JSON")
	}
	return bodyForm{"raw", string(body)}, nil
}

func (r *recipe) applyPointers(root *jsonValue) *jsonValue {
	for _, pointer := range r.exclude {
		root.remove(pointer)
	}
	if len(r.include) == 0 {
		return root
	}
	picked := &jsonValue{kind: jsonArray}
	pointers := slices.Sorted(slices.Values(r.include))
	for _, pointer := range pointers {
		if value := root.get(pointer); value != nil {
			name := &jsonValue{kind: jsonText, text: pointer}
			picked.items = append(picked.items, &jsonValue{kind: jsonArray, items: []*jsonValue{name, value}})
		}
	}
	return picked
}

// fingerprint makes the 32 bytes; with a secret they are keyed.
func (r *recipe) fingerprint(request described, body bodyForm, secret []byte) []byte {
	message := r.message(request, body)
	if secret != nil {
		mac := hmac.New(sha256.New, secret)
		mac.Write(message)
		return mac.Sum(nil)
	}
	sum := sha256.Sum256(message)
	return sum[:]
}

func (r *recipe) message(request described, body bodyForm) []byte {
	// Without framing, so that sha256sum can check it.
	if len(r.inputs) == 1 && r.inputs[0] == "body" {
		return []byte(body.content)
	}
	var params []byte
	for _, param := range request.params {
		params = lengthPrefixed(lengthPrefixed(params, param[0]), param[1])
	}
	contents := []struct{ input, letter, content string }{
		{"method", "m", request.method},
		{"route", "r", request.route},
		{"params", "p", string(params)},
		{"query", "q", request.query},
		{"principal", "s", request.principal},
		{"body", "b", body.form[:1] + body.content},
	}
	message := lengthPrefixed(nil, "semel.fingerprint.1")
	for _, part := range contents {
		if slices.Contains(r.inputs, part.input) {
			message = lengthPrefixed(append(message, part.letter...), part.content)
		}
	}
	return message
}

// rotationMark recognises the same request under another credential: of a key that nobody else makes.
func rotationMark(endpoint, key string, fingerprint []byte) []byte {
	if fingerprint == nil || !uuidPattern.MatchString(key) {
		return nil
	}
	var message []byte
	for _, part := range []string{endpoint, strings.ToLower(key), string(fingerprint)} {
		message = lengthPrefixed(message, part)
	}
	sum := sha256.Sum256(message)
	return sum[:16]
}
