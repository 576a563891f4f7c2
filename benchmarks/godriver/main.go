// godriver is a DRA driver that does what none can leave out, and nothing else: the baseline of `make bench-cluster`.
//
// It is built on the upstream helper (k8s.io/dynamic-resource-allocation/kubeletplugin), which reads the claim from the
// API server, answers the kubelet and publishes. A prepared claim is a CDI file and an entry of a JSON checkpoint, each
// written with a temporary file, fsync, rename and fsync of the directory. Client limits are off.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

type settings struct {
	kubeconfig, node, driver, kubeletDir, cdiDir, stateDir string
	devices                                                int
}

func main() {
	var s settings
	flag.StringVar(&s.kubeconfig, "kubeconfig", "", "credentials for the API server")
	flag.StringVar(&s.node, "node-name", "", "name of this node")
	flag.StringVar(&s.driver, "driver-name", "", "name of the driver")
	flag.StringVar(&s.kubeletDir, "kubelet-dir", "", "the kubelet's root directory")
	flag.StringVar(&s.cdiDir, "cdi-dir", "", "where CDI specs are written")
	flag.StringVar(&s.stateDir, "state-dir", "", "where the checkpoint is kept")
	flag.IntVar(&s.devices, "devices", 18, "how many simulated devices are published")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "godriver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(s.kubeletDir, "plugins", s.driver)
	for _, dir := range []string{data, s.cdiDir, s.stateDir} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	driver, err := newDriver(s)
	if err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, driver,
		kubeletplugin.DriverName(s.driver),
		kubeletplugin.NodeName(s.node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(s.kubeletDir, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	if err := helper.PublishResources(ctx, resources(s)); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Serving", "driver", s.driver, "devices", s.devices)
	<-ctx.Done()
	return nil
}

func resources(s settings) resourceslice.DriverResources {
	devices := make([]resourceapi.Device, s.devices)
	for i := range devices {
		kind := "simulated"
		devices[i] = resourceapi.Device{
			Name:       fmt.Sprintf("device-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}},
		}
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{s.node: pool}}
}
