// Says what Kubernetes' own validation makes of objects: reads one per line (JSON), writes a list of errors per line.
//
// It links a good part of the API server, so that no test builds it. The golden values of test_validation.py are its:
//
//	go build -o oracle . && ./oracle < objects.jsonl
package main

import (
	"bufio"
	"encoding/json"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/resource"
	v1 "k8s.io/kubernetes/pkg/apis/resource/v1"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 1<<26)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var meta metav1.TypeMeta
		_ = json.Unmarshal(in.Bytes(), &meta)
		var errs field.ErrorList
		var err error
		switch meta.Kind {
		case "ResourceClaim":
			var o resourceapi.ResourceClaim
			if err = json.Unmarshal(in.Bytes(), &o); err == nil {
				v1.SetObjectDefaults_ResourceClaim(&o)
				var i resource.ResourceClaim
				if err = v1.Convert_v1_ResourceClaim_To_resource_ResourceClaim(&o, &i, nil); err == nil {
					errs = validation.ValidateResourceClaim(&i)
				}
			}
		case "DeviceClass":
			var o resourceapi.DeviceClass
			if err = json.Unmarshal(in.Bytes(), &o); err == nil {
				var i resource.DeviceClass
				if err = v1.Convert_v1_DeviceClass_To_resource_DeviceClass(&o, &i, nil); err == nil {
					errs = validation.ValidateDeviceClass(&i)
				}
			}
		case "ResourceSlice":
			var o resourceapi.ResourceSlice
			if err = json.Unmarshal(in.Bytes(), &o); err == nil {
				v1.SetObjectDefaults_ResourceSlice(&o)
				var i resource.ResourceSlice
				if err = v1.Convert_v1_ResourceSlice_To_resource_ResourceSlice(&o, &i, nil); err == nil {
					errs = validation.ValidateResourceSlice(&i)
				}
			}
		}
		list := []string{}
		if err != nil {
			list = append(list, "decode: "+err.Error())
		}
		for _, e := range errs {
			list = append(list, e.Error())
		}
		_ = out.Encode(list)
	}
}
