// Karpenter with its provider of simulated nodes, whose instance types have the devices of a cloud provider.
//
// It starts the controllers that sigs.k8s.io/karpenter/kwok starts, whose instance types have no devices. The devices
// are read from files with the output of `dra-agent slices template --form karpenter`.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unique"

	"github.com/samber/lo"
	resourcev1 "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

// directoryVariable names the environment variable with the directory of the files INSTANCE-TYPE.yaml.
const directoryVariable = "DYNAMIC_RESOURCES_DIRECTORY"

// document has the fields of cloudprovider.DynamicResources with strings in place of unique handles.
type document struct {
	ResourceSliceTemplates []sliceTemplate `json:"resourceSliceTemplates"`
	AttributeBindings      []binding       `json:"attributeBindings"`
}

type sliceTemplate struct {
	Driver         string                  `json:"driver"`
	Pool           pool                    `json:"pool"`
	Devices        []device                `json:"devices"`
	SharedCounters []resourcev1.CounterSet `json:"sharedCounters"`
}

type pool struct {
	Name string `json:"name"`
}

type device struct {
	Name                     string                                                  `json:"name"`
	Attributes               map[resourcev1.QualifiedName]resourcev1.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourcev1.QualifiedName]resourcev1.DeviceCapacity  `json:"capacity"`
	AllowMultipleAllocations bool                                                    `json:"allowMultipleAllocations"`
	ConsumesCounters         []resourcev1.DeviceCounterConsumption                   `json:"consumesCounters"`
}

type binding struct {
	Attribute resourcev1.QualifiedName `json:"attribute"`
	Devices   []deviceID               `json:"devices"`
}

type deviceID struct {
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

func main() {
	ctx, op := operator.NewOperator()
	instanceTypes := lo.Must(kwok.ConstructInstanceTypes(ctx))
	for _, instanceType := range instanceTypes {
		lo.Must0(readDevices(instanceType, os.Getenv(directoryVariable)))
	}
	undecorated := kwok.NewCloudProvider(ctx, op.GetClient(), instanceTypes)
	cloudProvider := overlay.Decorate(undecorated, op.GetClient(), op.InstanceTypeStore)
	matcher := lo.Must(health.NewRepairPolicyMatcher(ctx, cloudProvider))
	clusterState := state.NewCluster(op.Clock, op.GetClient(), cloudProvider, state.WithRepairPolicyMatcher(matcher))
	op.
		WithControllers(ctx, controllers.NewControllers(
			ctx,
			op.Manager,
			op.Clock,
			op.GetClient(),
			op.EventRecorder,
			cloudProvider,
			undecorated,
			clusterState,
			op.InstanceTypeStore,
			op.PredictionStore,
		)...).Start(ctx)
}

// readDevices fills in the devices of an instance type that has a file. Unknown fields are an error.
func readDevices(instanceType *cloudprovider.InstanceType, directory string) error {
	file := filepath.Join(directory, instanceType.Name+".yaml")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var found document
	if err := yaml.UnmarshalStrict(text, &found); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	instanceType.DynamicResources = found.dynamicResources()
	return nil
}

func (d document) dynamicResources() cloudprovider.DynamicResources {
	return cloudprovider.DynamicResources{
		ResourceSliceTemplates: lo.Map(d.ResourceSliceTemplates, func(s sliceTemplate, _ int) *cloudprovider.ResourceSliceTemplate {
			return &cloudprovider.ResourceSliceTemplate{
				Driver:         unique.Make(s.Driver),
				Pool:           cloudprovider.ResourcePool{Name: unique.Make(s.Pool.Name)},
				Devices:        lo.Map(s.Devices, func(one device, _ int) cloudprovider.Device { return one.device() }),
				SharedCounters: s.SharedCounters,
			}
		}),
		AttributeBindings: lo.Map(d.AttributeBindings, func(b binding, _ int) *cloudprovider.AttributeBinding {
			return &cloudprovider.AttributeBinding{
				Attribute: b.Attribute,
				Devices:   lo.Map(b.Devices, func(one deviceID, _ int) cloudprovider.DeviceID { return one.id() }),
			}
		}),
	}
}

func (d device) device() cloudprovider.Device {
	return cloudprovider.Device{
		Name:                     unique.Make(d.Name),
		Attributes:               d.Attributes,
		Capacity:                 d.Capacity,
		AllowMultipleAllocations: d.AllowMultipleAllocations,
		ConsumesCounters:         d.ConsumesCounters,
	}
}

func (d deviceID) id() cloudprovider.DeviceID {
	return cloudprovider.DeviceID{
		Driver: unique.Make(d.Driver),
		Pool:   unique.Make(d.Pool),
		Device: unique.Make(d.Device),
	}
}
