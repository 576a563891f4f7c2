package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apiserver/pkg/cel/environment"
)

// env returns the environment of selectors, without a device.
var env = sync.OnceValues(func() (*cel.Env, error) {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Env(environment.StoredExpressions)
})

// value evaluates an expression of any type.
func value(expression string) answer {
	env, err := env()
	if err != nil {
		panic(err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return answer{CompileError: issues.Err().Error()}
	}
	program, err := env.Program(ast)
	if err != nil {
		return answer{CompileError: err.Error()}
	}
	result, _, err := program.Eval(map[string]any{})
	if err != nil {
		return answer{RuntimeError: err.Error()}
	}
	return answer{Literal: literal(result)}
}

// literal returns an expression with this value, or "" for a type without one.
func literal(value ref.Val) string {
	switch value := value.(type) {
	case types.Null:
		return "null"
	case types.Bool:
		return strconv.FormatBool(bool(value))
	case types.Int:
		return strconv.FormatInt(int64(value), 10)
	case types.Uint:
		return strconv.FormatUint(uint64(value), 10) + "u"
	case types.Double:
		return double(float64(value))
	case types.String:
		return quoted(string(value))
	case types.Bytes:
		text := "b\""
		for _, b := range value {
			text += fmt.Sprintf("\\x%02x", b)
		}
		return text + "\""
	case types.Duration:
		return fmt.Sprintf("duration(\"%dns\")", value.Nanoseconds())
	case types.Timestamp:
		return fmt.Sprintf("timestamp(%q)", value.UTC().Format(time.RFC3339Nano))
	case *types.Optional:
		if !value.HasValue() {
			return "optional.none()"
		}
		return "optional.of(" + literal(value.GetValue()) + ")"
	case traits.Lister:
		return "[" + strings.Join(items(value.Iterator(), literal), ", ") + "]"
	case traits.Mapper:
		return "{" + strings.Join(items(value.Iterator(), func(key ref.Val) string {
			return literal(key) + ": " + literal(value.Get(key))
		}), ", ") + "}"
	case ref.Type:
		return value.TypeName()
	}
	return ""
}

func double(value float64) string {
	if math.IsInf(value, 0) || math.IsNaN(value) {
		return fmt.Sprintf("double(%q)", strconv.FormatFloat(value, 'g', -1, 64))
	}
	text := strconv.FormatFloat(value, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}

func quoted(text string) string {
	quoted := "\""
	for _, r := range text {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			quoted += fmt.Sprintf("\\U%08x", r)
		} else {
			quoted += string(r)
		}
	}
	return quoted + "\""
}

func items(iterator traits.Iterator, text func(ref.Val) string) []string {
	all := []string{}
	for iterator.HasNext() == types.True {
		all = append(all, text(iterator.Next()))
	}
	return all
}
