// probe plays the kubelet for benchmarks: it registers drivers and makes their calls, and says when and how long.
//
// One request per line of standard input, one answer per line of standard output, both JSON; an answer has "error" where
// the request failed. Times are nanoseconds; instants are of CLOCK_MONOTONIC, which other processes can read too.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

type request struct {
	Do string `json:"do"`
	// Driver is the name of the driver that is meant.
	Driver string `json:"driver"`
	// Registry is the kubelet's plugins_registry directory.
	Registry string `json:"registry"`
	// Seconds limits a registration.
	Seconds float64 `json:"seconds"`
	Claims  []claim `json:"claims"`
	// Steps are made of every claim in turn: prepare or unprepare.
	Steps []string `json:"steps"`
	// Rounds says how often the claims are gone through.
	Rounds int `json:"rounds"`
}

type claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

type answer struct {
	Error string `json:"error,omitempty"`
	// At is when the driver had answered NotifyRegistrationStatus.
	At       int64    `json:"at,omitempty"`
	Endpoint string   `json:"endpoint,omitempty"`
	Versions []string `json:"versions,omitempty"`
	// Took has, for each of the steps, how long each call took.
	Took [][]int64 `json:"took,omitempty"`
}

func main() {
	kubelet := kubelet{plugins: map[string]*plugin{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		err := json.Unmarshal(lines.Bytes(), &asked)
		var given answer
		if err == nil {
			given, err = kubelet.answer(asked)
		}
		if err != nil {
			given = answer{Error: err.Error()}
		}
		if err := out.Encode(given); err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(1)
		}
	}
}

func (k *kubelet) answer(asked request) (answer, error) {
	switch asked.Do {
	case "register":
		limit := time.Duration(asked.Seconds * float64(time.Second))
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		return k.register(ctx, asked.Registry, asked.Driver)
	case "calls":
		return k.calls(asked)
	case "forget":
		return answer{}, k.forget(asked.Driver)
	}
	return answer{}, fmt.Errorf("unknown request %q", asked.Do)
}
