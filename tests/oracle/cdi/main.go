// Command cdi-oracle asks the official CDI library what it makes of directories of specs.
//
// It reads one question as JSON on standard input and answers with JSON on standard output. The library's version is
// chosen by the module file: go.mod for the newest, v0.8.mod and v1.0.mod for those that older runtimes carry.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

type question struct {
	Dirs   []string   `json:"dirs"`
	Inject [][]string `json:"inject"`
}

type injection struct {
	Error string    `json:"error,omitempty"`
	Spec  *oci.Spec `json:"spec,omitempty"`
}

type answer struct {
	Devices    []string            `json:"devices"`
	Errors     map[string][]string `json:"errors"`
	Minimum    map[string]string   `json:"minimum"`
	Injections []injection         `json:"injections"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var q question
	if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
		return err
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(q.Dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	a := answer{Devices: cache.ListDevices(), Errors: map[string][]string{}, Minimum: map[string]string{}}
	for path, errs := range cache.GetErrors() {
		for _, e := range errs {
			a.Errors[path] = append(a.Errors[path], e.Error())
		}
	}
	for _, vendor := range cache.ListVendors() {
		for _, spec := range cache.GetVendorSpecs(vendor) {
			version, err := cdi.MinimumRequiredVersion(spec.Spec)
			if err != nil {
				return err
			}
			a.Minimum[spec.GetPath()] = version
		}
	}
	for _, ids := range q.Inject {
		spec := &oci.Spec{Version: oci.Version, Process: &oci.Process{}, Linux: &oci.Linux{}}
		if _, err := cache.InjectDevices(spec, ids...); err != nil {
			a.Injections = append(a.Injections, injection{Error: err.Error()})
			continue
		}
		a.Injections = append(a.Injections, injection{Spec: spec})
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}
