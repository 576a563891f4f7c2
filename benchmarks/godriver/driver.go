package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// driver prepares claims. The helper calls it one call at a time, so it needs no lock.
type driver struct {
	name, cdiDir, checkpoint string
	prepared                 map[types.UID][]kubeletplugin.Device
}

func newDriver(s settings) (*driver, error) {
	d := &driver{
		name:       s.driver,
		cdiDir:     s.cdiDir,
		checkpoint: filepath.Join(s.stateDir, "checkpoint.json"),
		prepared:   map[types.UID][]kubeletplugin.Device{},
	}
	data, err := os.ReadFile(d.checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	return d, json.Unmarshal(data, &d.prepared)
}

func (d *driver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if devices, ok := d.prepared[claim.UID]; ok {
		return devices, nil
	}
	devices := d.devices(claim)
	spec, err := json.Marshal(d.spec(claim.UID, devices))
	if err != nil {
		return nil, err
	}
	if err := replace(d.specFile(claim.UID), spec); err != nil {
		return nil, err
	}
	after := maps.Clone(d.prepared)
	after[claim.UID] = devices
	return devices, d.keep(after)
}

func (d *driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(claim.UID)
	}
	return results, nil
}

func (d *driver) unprepare(uid types.UID) error {
	if _, ok := d.prepared[uid]; !ok {
		return nil
	}
	if err := remove(d.specFile(uid)); err != nil {
		return err
	}
	after := maps.Clone(d.prepared)
	delete(after, uid)
	return d.keep(after)
}

// keep makes `prepared` durable before it counts.
func (d *driver) keep(prepared map[types.UID][]kubeletplugin.Device) error {
	data, err := json.Marshal(prepared)
	if err != nil {
		return err
	}
	if err := replace(d.checkpoint, data); err != nil {
		return err
	}
	d.prepared = prepared
	return nil
}

func (d *driver) devices(claim *resourceapi.ResourceClaim) []kubeletplugin.Device {
	var devices []kubeletplugin.Device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.name {
			continue
		}
		devices = append(devices, kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			CDIDeviceIDs: []string{d.name + "/claim=" + cdiName(claim.UID, result.Device)},
		})
	}
	return devices
}

// spec is the claim's CDI spec: a device node and variables for each device.
func (d *driver) spec(uid types.UID, devices []kubeletplugin.Device) map[string]any {
	list := make([]map[string]any, 0, len(devices))
	for _, device := range devices {
		edits := map[string]any{
			"env":         []string{"SIMULATED_DEVICE=" + device.DeviceName, "SIMULATED_POOL=" + device.PoolName},
			"deviceNodes": []map[string]any{{"path": "/dev/" + device.DeviceName, "hostPath": "/dev/null"}},
		}
		list = append(list, map[string]any{"name": cdiName(uid, device.DeviceName), "containerEdits": edits})
	}
	return map[string]any{"cdiVersion": "0.6.0", "kind": d.name + "/claim", "devices": list}
}

func (d *driver) specFile(uid types.UID) string {
	return filepath.Join(d.cdiDir, d.name+"-claim_"+string(uid)+".json")
}

func cdiName(uid types.UID, device string) string { return string(uid) + "-" + device }

// HandleError logs, as the helper recommends.
func (d *driver) HandleError(ctx context.Context, err error, msg string) {
	runtime.HandleErrorWithContext(ctx, err, msg)
}

// WatchHealthStatus is never called: the health service is off.
func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
