package semel

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The idempotency key: where it stands in a request, how it is written, what it may look like.

// keyCharsMax is the longest key in characters, whatever the format.
const keyCharsMax = 255

// keyHeaders are the headers by which clients everywhere send keys. A key in one of them is never ignored: a key that
// is ignored is a retry that runs again.
var keyHeaders = []string{"Idempotency-Key", "X-Idempotency-Key"}

var (
	uuidPattern       = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
	uuid4LowerPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	tokenPattern      = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	printablePattern  = regexp.MustCompile(`^[ -~]+$`)
	ulidPattern       = regexp.MustCompile(`^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$`)
)

// keyPolicy says how keys are read on a route.
type keyPolicy struct {
	sources  []string
	syntax   string
	format   string
	presence string
	// requireHeaders are headers, with their format, that must come with the key.
	requireHeaders [][2]string
}

// foundKey is a key, with where and how it was found.
type foundKey struct{ key, source, syntax string }

// read finds the key of a request; nil where there is none and none is required.
func (p *keyPolicy) read(headers headerLines, body []byte) (*foundKey, *Problem) {
	var found *foundKey
	add := func(text, source, syntax string) *Problem {
		if found == nil {
			found = &foundKey{text, source, syntax}
		} else if found.key != text {
			return newProblem("key-ambiguous", fmt.Sprintf("%s and %s disagree", found.source, source))
		}
		return nil
	}
	readsHeaders := false
	for _, source := range p.sources {
		readsHeaders = readsHeaders || strings.HasPrefix(source, "header:")
	}
	sources := p.sources
	if !readsHeaders {
		for _, name := range keyHeaders {
			sources = append(sources[:len(sources):len(sources)], "header:"+name)
		}
	}
	isUnread := false
	for _, source := range sources {
		kind, name, _ := strings.Cut(source, ":")
		if kind == "header" {
			text, syntax, problem := p.readHeader(headers, name)
			if problem == nil && syntax != "" {
				problem = add(text, source, syntax)
			}
			if problem != nil {
				return nil, problem
			}
			continue
		}
		text, isThere, isJSON, problem := readJSONKey(body, name)
		isUnread = isUnread || !isJSON && len(body) > 0
		if problem == nil && isThere {
			problem = add(text, source, "bare")
		}
		if problem != nil {
			return nil, problem
		}
	}
	if found == nil {
		return nil, p.refuseMissing(headers, isUnread)
	}
	return found, checkKey(p.format, found.key)
}

func (p *keyPolicy) refuseMissing(headers headerLines, isUnread bool) *Problem {
	if isUnread {
		return newProblem("body-not-json", "the key is read from the body, which must be JSON without repeated names")
	}
	wanted := make([]string, len(p.sources))
	for at, source := range p.sources {
		kind, name, _ := strings.Cut(source, ":")
		wanted[at] = name
		if kind == "header" {
			wanted[at] = "the " + name + " header"
		}
	}
	words := strings.Join(wanted, " or ")
	for _, name := range keyHeaders {
		if len(headers.values(name)) > 0 {
			return newProblem("key-missing", name+" is not read here: send the key in "+words)
		}
	}
	if p.presence == "required" {
		return newProblem("key-missing", "send a key in "+words)
	}
	return nil
}

// readHeader finds the key in a header; syntax is empty where there is none.
func (p *keyPolicy) readHeader(headers headerLines, name string) (text, syntax string, problem *Problem) {
	lines := headers.values(name)
	if len(lines) > 1 {
		return "", "", newProblem("key-ambiguous", name+" is given on more than one line")
	}
	if len(lines) == 0 {
		return "", "", nil
	}
	value := strings.Trim(lines[0], " \t")
	if p.syntax == "sf-string" || p.syntax == "both" && strings.HasPrefix(value, `"`) {
		text, isString := parseStructuredString(value)
		if !isString {
			return "", "", newProblem("key-invalid", "the key is not a structured string")
		}
		return text, "sf-string", nil
	}
	return value, "bare", nil
}

func readJSONKey(body []byte, pointer string) (text string, isThere, isJSON bool, problem *Problem) {
	document, err := parseJSON(body)
	if err != nil || document.repeatsName {
		return "", false, false, nil
	}
	value := document.root.get(pointer)
	if value == nil {
		return "", false, true, nil
	}
	if value.kind != jsonText {
		return "", false, true, newProblem("key-invalid", "the key in the body must be a string")
	}
	return value.text, true, true, nil
}

// checkKey refuses a key that its format does not accept.
func checkKey(format, key string) *Problem {
	if key == "" {
		return newProblem("key-invalid", "the key is empty")
	}
	if !utf8.ValidString(key) {
		return newProblem("key-invalid", "the key is not UTF-8 text")
	}
	if !formatAccepts(format, key) {
		return newProblem("key-invalid", "the key must be "+formatInWords(format))
	}
	return nil
}

func formatAccepts(format, text string) bool {
	if text == "" || utf8.RuneCountInString(text) > keyCharsMax || strings.IndexFunc(text, unicode.IsControl) >= 0 {
		return false
	}
	switch format {
	case "uuid4-lower":
		return uuid4LowerPattern.MatchString(text)
	case "uuid":
		return uuidPattern.MatchString(text)
	case "token255":
		return tokenPattern.MatchString(text)
	case "printable255":
		return printablePattern.MatchString(text)
	case "any255":
		return true
	case "ulid":
		return ulidPattern.MatchString(text)
	}
	pattern, isRegex := strings.CutPrefix(format, "regex:")
	if !isRegex {
		panic("semel: no such key format: " + format)
	}
	return regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(text)
}

func formatInWords(format string) string {
	words := map[string]string{
		"uuid4-lower":  "a version 4 UUID in lower case with dashes",
		"uuid":         "a UUID with dashes",
		"token255":     "1 to 255 letters, digits, dashes or underscores",
		"printable255": "1 to 255 printable ASCII characters",
		"any255":       "1 to 255 characters without control characters",
		"ulid":         "a ULID",
	}
	if text := words[format]; text != "" {
		return text
	}
	return "at most 255 characters matching " + strings.TrimPrefix(format, "regex:")
}

// isRandomUUID tells whether a key carries the 122 random bits of a version 4 UUID.
func isRandomUUID(key string) bool { return uuid4LowerPattern.MatchString(strings.ToLower(key)) }

// readRequired checks the headers that must come with the key, and returns their values by lower-case name.
func (p *keyPolicy) readRequired(headers headerLines) (map[string]string, *Problem) {
	kept := map[string]string{}
	for _, required := range p.requireHeaders {
		name, format := required[0], required[1]
		lines := headers.values(name)
		switch {
		case len(lines) == 0:
			return nil, newProblem("header-missing", name+" is required")
		case len(lines) > 1:
			return nil, newProblem("header-missing", name+" is given twice")
		}
		value := strings.Trim(lines[0], " \t")
		if !utf8.ValidString(value) || !formatAccepts(format, value) {
			return nil, newProblem("header-missing", name+" must be "+formatInWords(format))
		}
		kept[strings.ToLower(name)] = value
	}
	return kept, nil
}

var (
	structuredKey  = regexp.MustCompile(`^[a-z*][a-z0-9_.*-]*`)
	structuredItem = regexp.MustCompile(
		`^(?:-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}|"(?:[ !#-\[\]-~]|\\["\\])*"|[A-Za-z*][!#$%&'*+.^_` + "`" +
			`|~0-9A-Za-z:/-]*|:[A-Za-z0-9+/=]*:|\?[01])`)
	structuredText = regexp.MustCompile(`^"((?:[ !#-\[\]-~]|\\["\\])*)"`)
)

// parseStructuredString reads an RFC 8941 Item whose bare item is a String. Its parameters must be well formed, and are
// ignored.
func parseStructuredString(value string) (string, bool) {
	match := structuredText.FindStringSubmatch(value)
	if match == nil {
		return "", false
	}
	rest := value[len(match[0]):]
	for strings.HasPrefix(rest, ";") {
		rest = strings.TrimLeft(rest[1:], " ")
		name := structuredKey.FindString(rest)
		if name == "" {
			return "", false
		}
		rest = rest[len(name):]
		if !strings.HasPrefix(rest, "=") {
			continue
		}
		item := structuredItem.FindString(rest[1:])
		if item == "" {
			return "", false
		}
		rest = rest[1+len(item):]
	}
	text := strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(match[1])
	return text, strings.Trim(rest, " ") == ""
}
