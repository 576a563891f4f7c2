// Command manifests-oracle decodes manifests with the types of one version of Kubernetes.
//
// It reads YAML documents from standard input and prints one line of JSON for each: the kind, and an error if the type does
// not exist in this version, or if a field is unknown, repeated or of another type.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

type answer struct {
	Kind  string `json:"kind"`
	Error string `json:"error,omitempty"`
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, flowcontrolv1.AddToScheme,
		networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, resourcev1.AddToScheme,
	} {
		fail(add(scheme))
	}
	decoder := serializer.NewSerializerWithOptions(
		serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{Yaml: true, Strict: true},
	)
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	answers := json.NewEncoder(os.Stdout)
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		fail(err)
		var a answer
		_, kind, err := decoder.Decode(document, nil, nil)
		if kind != nil {
			a.Kind = kind.Kind
		}
		if err != nil {
			a.Error = err.Error()
		}
		fail(answers.Encode(a))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
