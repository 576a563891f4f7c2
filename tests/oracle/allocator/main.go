// Command allocator-oracle answers allocation questions with the structured allocator of kube-scheduler.
//
// It reads one JSON object per line, {"node", "classes", "slices", "claims", "allocated"}, and writes one answer
// per line: {"allocated", "results", "error"}. What surrounds the allocator in the scheduler (defaults of the API
// server, which claims are still to be allocated, which devices are in use) is done here as the scheduler's
// DynamicResources plugin does it, so that the answer is the one that a pod would get for this node.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// deadline bounds one answer. The scheduler's is 10 s.
var deadline = flag.Duration("deadline", 10*time.Second, "how long the search for one answer may take")

// features are those that the default feature gates of Kubernetes v1.37 enable.
var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

// gated turns a feature on that is off by default, by the name of its gate.
var gated = map[string]func(*structured.Features){
	"DRAListTypeAttributes":     func(f *structured.Features) { f.ListTypeAttributes = true },
	"DRAOptionalNodeOperations": func(f *structured.Features) { f.OptionalNodeOperations = true },
}

type question struct {
	Node      json.RawMessage              `json:"node"`
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
	Gates     []string                     `json:"gates"`
}

type answer struct {
	Allocated bool                            `json:"allocated"`
	Results   []*resourceapi.AllocationResult `json:"results"`
	Error     *string                         `json:"error"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var list []*resourceapi.DeviceClass
	for _, class := range c {
		list = append(list, class)
	}
	return list, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("class %q not found", name)
}

func main() {
	flag.Parse()
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var q question
			var reply answer
			if err := json.Unmarshal(line, &q); err != nil {
				reply = failure(fmt.Errorf("unreadable question: %w", err))
			} else {
				reply = ask(q)
			}
			if err := encoder.Encode(reply); err != nil {
				panic(err)
			}
			out.Flush()
		}
		if err != nil {
			return
		}
	}
}

func failure(err error) answer {
	text := err.Error()
	return answer{Results: []*resourceapi.AllocationResult{}, Error: &text}
}

func doesNotFit() answer {
	return answer{Results: []*resourceapi.AllocationResult{}}
}

func ask(q question) (reply answer) {
	// A panic of the allocator would end the scheduler; an invalid object that causes one is an error to us.
	defer func() {
		if reason := recover(); reason != nil {
			reply = failure(fmt.Errorf("panic: %v", reason))
		}
	}()

	node, err := readNode(q.Node)
	if err != nil {
		return failure(err)
	}
	byName := make(classes)
	for _, class := range q.Classes {
		byName[class.Name] = class
	}
	for _, claim := range q.Claims {
		setDefaults(claim)
	}

	ctx, cancel := context.WithTimeout(context.Background(), *deadline)
	defer cancel()
	enabled := features
	for _, name := range q.Gates {
		turnOn, ok := gated[name]
		if !ok {
			return failure(fmt.Errorf("unknown feature gate %q", name))
		}
		turnOn(&enabled)
	}
	cache := cel.NewCache(10, cel.Features{
		EnableConsumableCapacity: true,
		EnableListTypeAttributes: enabled.ListTypeAttributes,
	})
	allocator, err := structured.NewAllocator(ctx, enabled, gather(q), byName, q.Slices, cache)
	if err != nil {
		return failure(err)
	}

	var pending []*resourceapi.ResourceClaim
	var selectors []*nodeaffinity.NodeSelector
	for _, claim := range q.Claims {
		if claim.Status.Allocation == nil {
			pending = append(pending, claim)
			continue
		}
		if claim.Status.Allocation.NodeSelector != nil {
			selector, err := nodeaffinity.NewNodeSelector(claim.Status.Allocation.NodeSelector)
			if err != nil {
				return failure(err)
			}
			selectors = append(selectors, selector)
		}
	}
	var found []resourceapi.AllocationResult
	if len(pending) > 0 {
		found, err = allocator.Allocate(ctx, node, pending)
		if err != nil {
			return failure(err)
		}
		if len(found) != len(pending) {
			return doesNotFit()
		}
	}
	for _, selector := range selectors {
		if !selector.Match(node) {
			return doesNotFit()
		}
	}

	results := []*resourceapi.AllocationResult{}
	next := 0
	for _, claim := range q.Claims {
		if claim.Status.Allocation != nil {
			results = append(results, claim.Status.Allocation)
			continue
		}
		results = append(results, &found[next])
		next++
	}
	return answer{Allocated: true, Results: results}
}

func readNode(raw json.RawMessage) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := json.Unmarshal(raw, &node.Name); err == nil {
		return node, nil
	}
	node = &corev1.Node{}
	err := json.Unmarshal(raw, node)
	return node, err
}

// setDefaults fills in what the API server fills in (pkg/apis/resource/v1 of Kubernetes).
func setDefaults(claim *resourceapi.ResourceClaim) {
	tolerations := func(list []resourceapi.DeviceToleration) {
		for i := range list {
			if list[i].Operator == "" {
				list[i].Operator = resourceapi.DeviceTolerationOpEqual
			}
		}
	}
	mode := func(mode *resourceapi.DeviceAllocationMode, count *int64) {
		if *mode == "" {
			*mode = resourceapi.DeviceAllocationModeExactCount
		}
		if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if exactly := request.Exactly; exactly != nil {
			mode(&exactly.AllocationMode, &exactly.Count)
			tolerations(exactly.Tolerations)
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			mode(&sub.AllocationMode, &sub.Count)
			tolerations(sub.Tolerations)
		}
	}
}

// gather collects what is in use. A claim that is named twice counts once.
func gather(q question) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	seen := sets.New[string]()
	for _, list := range [][]*resourceapi.ResourceClaim{q.Allocated, q.Claims} {
		for _, claim := range list {
			if claim.Status.Allocation == nil {
				continue
			}
			key := string(claim.UID)
			if key == "" && claim.Name != "" {
				key = claim.Namespace + "/" + claim.Name
			}
			if key != "" {
				if seen.Has(key) {
					continue
				}
				seen.Insert(key)
			}
			for _, result := range claim.Status.Allocation.Devices.Results {
				if result.AdminAccess != nil && *result.AdminAccess {
					continue
				}
				id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
				if result.ShareID == nil {
					state.AllocatedDevices.Insert(id)
					continue
				}
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			}
		}
	}
	return state
}
