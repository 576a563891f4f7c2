// Command metadata-oracle reads device metadata files with the upstream types and says what they hold.
//
// It is given paths of files; for each it prints one line of JSON: an error, or the document as upstream writes it.
// A field that the v1beta1 type does not know is an error.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

type answer struct {
	Error    string                  `json:"error,omitempty"`
	Version  string                  `json:"version,omitempty"`
	Document *v1beta1.DeviceMetadata `json:"document,omitempty"`
}

func main() {
	encoder := json.NewEncoder(os.Stdout)
	for _, path := range os.Args[1:] {
		a, err := read(path)
		if err != nil {
			a = answer{Error: err.Error()}
		}
		if err := encoder.Encode(a); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func read(path string) (answer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return answer{}, err
	}
	// As a consumer reads it, with upstream's validation.
	var internal metadata.DeviceMetadata
	var invalid error
	var kind schema.GroupVersionKind
	err = devicemetadata.DecodeMetadataFromStream(
		json.NewDecoder(bytes.NewReader(data)), &internal,
		devicemetadata.DecodeMetadataWithValidationResult(&invalid), devicemetadata.DecodeMetadataStoreGVKResult(&kind),
	)
	if err != nil {
		return answer{}, err
	}
	if invalid != nil {
		return answer{}, invalid
	}
	// And field by field.
	strict := json.NewDecoder(bytes.NewReader(data))
	strict.DisallowUnknownFields()
	var first *v1beta1.DeviceMetadata
	for {
		var document v1beta1.DeviceMetadata
		if err := strict.Decode(&document); err == io.EOF {
			return answer{Version: kind.GroupVersion().String(), Document: first}, nil
		} else if err != nil {
			return answer{}, err
		}
		if first == nil {
			first = &document
		}
	}
}
