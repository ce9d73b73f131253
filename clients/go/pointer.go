package semel

import (
	"slices"
	"strconv"
	"strings"
)

// JSON pointers (RFC 6901): what they address, and taking it out.

// pointerTokens are the reference tokens of an RFC 6901 pointer.
func pointerTokens(pointer string) []string {
	if pointer == "" {
		return nil
	}
	tokens := strings.Split(pointer, "/")[1:]
	for at, token := range tokens {
		tokens[at] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	return tokens
}

// place finds the item of an array or object that a token addresses, -1 where there is none.
func (v *jsonValue) place(token string) int {
	switch {
	case v.kind == jsonObject:
		return slices.Index(v.names, token)
	case v.kind == jsonArray && isIndex(token):
		if at, err := strconv.Atoi(token); err == nil && at < len(v.items) {
			return at
		}
	}
	return -1
}

func isIndex(token string) bool {
	if token == "" || len(token) > 1 && token[0] == '0' {
		return false
	}
	return strings.Trim(token, "0123456789") == ""
}

// get is what a pointer addresses, nil where it addresses nothing.
func (v *jsonValue) get(pointer string) *jsonValue {
	for _, token := range pointerTokens(pointer) {
		at := v.place(token)
		if at < 0 {
			return nil
		}
		v = v.items[at]
	}
	return v
}

// remove takes out what a pointer addresses. An array element becomes null, so that the others keep their places.
func (v *jsonValue) remove(pointer string) {
	tokens := pointerTokens(pointer)
	if len(tokens) == 0 {
		*v = jsonValue{kind: jsonNull}
		return
	}
	for _, token := range tokens[:len(tokens)-1] {
		at := v.place(token)
		if at < 0 {
			return
		}
		v = v.items[at]
	}
	at := v.place(tokens[len(tokens)-1])
	if at < 0 {
		return
	}
	if v.kind == jsonArray {
		v.items[at] = &jsonValue{kind: jsonNull}
		return
	}
	v.names, v.items = slices.Delete(v.names, at, at+1), slices.Delete(v.items, at, at+1)
}
