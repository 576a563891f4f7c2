// Command cel answers CEL questions with Kubernetes' own code, so that ours can be compared with it.
//
// It reads one JSON object per line from standard input, {"expr", "driver", "device", "value"}, and writes one per line:
// {"compile_error"} or {"runtime_error", "cost"} or {"result", "cost"}. With "value" true, the expression has no device and any
// type of result, and the answer is {"literal"}: its result as an expression.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expr   string             `json:"expr"`
	Driver string             `json:"driver"`
	Device resourceapi.Device `json:"device"`
	Value  bool               `json:"value"`
}

type answer struct {
	CompileError string  `json:"compile_error,omitempty"`
	RuntimeError string  `json:"runtime_error,omitempty"`
	Result       *bool   `json:"result,omitempty"`
	Cost         *uint64 `json:"cost,omitempty"`
	Literal      string  `json:"literal,omitempty"`
}

func main() {
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 1<<26)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	for in.Scan() {
		var q question
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, "cannot read the question:", err)
			os.Exit(2)
		}
		if err := encoder.Encode(ask(compiler, q)); err != nil {
			fmt.Fprintln(os.Stderr, "cannot write the answer:", err)
			os.Exit(2)
		}
		// The asking side may wait for each answer.
		out.Flush()
	}
}

type compiler interface {
	CompileCELExpression(expression string, options dracel.Options) dracel.CompilationResult
}

// ask never panics: what makes Kubernetes' own code panic while it compiles counts as a compile error.
func ask(compiler compiler, q question) (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a = answer{CompileError: fmt.Sprintf("panic: %v", r)}
		}
	}()
	if q.Value {
		return value(q.Expr)
	}
	program := compiler.CompileCELExpression(q.Expr, dracel.Options{DisableCostEstimation: true})
	if program.Error != nil {
		return answer{CompileError: program.Error.Error()}
	}
	capacity := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}
	for name, c := range q.Device.Capacity {
		// The scheduler sees quantities as the API server writes them.
		c.Value = resource.MustParse(c.Value.String())
		capacity[name] = c
	}
	matches, details, err := program.DeviceMatches(context.Background(), dracel.Device{
		Driver:                   q.Driver,
		AllowMultipleAllocations: q.Device.AllowMultipleAllocations,
		Attributes:               q.Device.Attributes,
		Capacity:                 capacity,
	})
	if details != nil {
		a.Cost = details.ActualCost()
	}
	if err != nil {
		a.RuntimeError = err.Error()
		return a
	}
	a.Result = &matches
	return a
}
