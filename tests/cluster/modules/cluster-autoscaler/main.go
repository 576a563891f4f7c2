// Cluster Autoscaler with its provider of simulated nodes, whose node groups have the devices of a cloud provider.
//
// It runs the loop that the kwok binary of sigs.k8s.io/cluster-autoscaler runs, without leader election. That
// provider returns template nodes without ResourceSlices. The slices are read from files with the output of
// `dra-agent slices template`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/client-go/informers"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	autoscalerbuilder "sigs.k8s.io/cluster-autoscaler/pkg/builder"
	"sigs.k8s.io/cluster-autoscaler/pkg/cloudprovider"
	providerbuilder "sigs.k8s.io/cluster-autoscaler/pkg/cloudprovider/builder"
	"sigs.k8s.io/cluster-autoscaler/pkg/cloudprovider/kwok"
	"sigs.k8s.io/cluster-autoscaler/pkg/config"
	"sigs.k8s.io/cluster-autoscaler/pkg/config/flags"
	coreoptions "sigs.k8s.io/cluster-autoscaler/pkg/core/options"
	"sigs.k8s.io/cluster-autoscaler/pkg/debuggingsnapshot"
	"sigs.k8s.io/cluster-autoscaler/pkg/loop"
	"sigs.k8s.io/cluster-autoscaler/pkg/metrics"
	"sigs.k8s.io/cluster-autoscaler/pkg/simulator/framework"
	"sigs.k8s.io/cluster-autoscaler/pkg/utils/kubernetes"
)

const (
	// providerName is the value of --cloud-provider.
	providerName = "kwok-with-devices"
	// directoryVariable names the environment variable with the directory of the files NODE-GROUP.yaml.
	directoryVariable = "TEMPLATE_SLICES_DIRECTORY"
)

func main() {
	providerbuilder.RegisterCloudProvider(providerName, newProvider)
	klog.InitFlags(flag.CommandLine)
	var parsed flags.AutoscalingFlags
	parsed.AddFlags(pflag.CommandLine)
	cliflag.InitFlags()
	options, err := parsed.Options()
	if err == nil {
		err = run(ctrl.SetupSignalHandler(), options)
	}
	if err != nil {
		klog.Fatal(err)
	}
}

// run scans the cluster at each scan interval until the context ends.
func run(ctx context.Context, options config.AutoscalingOptions) error {
	ctrl.SetLogger(klog.NewKlogr())
	metrics.RegisterAll(options.EmitPerNodeGroupMetrics)
	manager, err := ctrl.NewManager(kubernetes.GetKubeConfig(options.KubeClientOpts), ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	client := kubernetes.CreateKubeClient(options.KubeClientOpts)
	autoscaler, _, err := autoscalerbuilder.New(options).
		WithDebuggingSnapshotter(debuggingsnapshot.NewDebuggingSnapshotter(false)).
		WithManager(manager).
		WithKubeClient(client).
		WithInformerFactory(informers.NewSharedInformerFactory(client, 0)).
		Build(ctx)
	if err != nil {
		return err
	}
	if err := autoscaler.Start(); err != nil {
		return err
	}
	failures := make(chan error, 2)
	go func() { failures <- http.ListenAndServe(options.Address, legacyregistry.Handler()) }()
	go func() { failures <- manager.Start(ctx) }()
	health := metrics.NewHealthCheck(options.MaxInactivityTime, options.MaxFailingTime, options.MaxStartupTime)
	for {
		select {
		case err := <-failures:
			return err
		case <-ctx.Done():
			return nil
		case <-time.After(options.ScanInterval):
			loop.RunAutoscalerOnce(ctx, autoscaler, health, time.Now())
		}
	}
}

// provider returns the node groups of another provider with the slices of their template nodes.
type provider struct {
	cloudprovider.CloudProvider
	slices map[string][]*resourcev1.ResourceSlice
}

func newProvider(options *coreoptions.AutoscalerOptions, discovery cloudprovider.NodeGroupDiscoveryOptions,
	limiter *cloudprovider.ResourceLimiter, factory informers.SharedInformerFactory) cloudprovider.CloudProvider {
	wrapped := provider{kwok.BuildKwok(options, discovery, limiter, factory), map[string][]*resourcev1.ResourceSlice{}}
	for _, found := range wrapped.CloudProvider.NodeGroups() {
		slices, err := readSlices(filepath.Join(os.Getenv(directoryVariable), found.Id()+".yaml"))
		if err != nil {
			klog.Fatal(err)
		}
		wrapped.slices[found.Id()] = slices
	}
	return wrapped
}

// readSlices returns the slices of a file, none if it does not exist. Unknown fields are an error.
func readSlices(file string) ([]*resourcev1.ResourceSlice, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list resourcev1.ResourceSliceList
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	slices := make([]*resourcev1.ResourceSlice, len(list.Items))
	for index := range list.Items {
		slices[index] = &list.Items[index]
	}
	return slices, nil
}

func (p provider) group(found cloudprovider.NodeGroup) cloudprovider.NodeGroup {
	return nodeGroup{found, p.slices[found.Id()]}
}

// NodeGroups returns all node groups.
func (p provider) NodeGroups() []cloudprovider.NodeGroup {
	groups := p.CloudProvider.NodeGroups()
	for index, found := range groups {
		groups[index] = p.group(found)
	}
	return groups
}

// NodeGroupForNode returns the node group of a node, nil for a node that the provider did not create.
func (p provider) NodeGroupForNode(node *corev1.Node) (cloudprovider.NodeGroup, error) {
	found, err := p.CloudProvider.NodeGroupForNode(node)
	if found == nil || err != nil {
		return nil, err
	}
	return p.group(found), nil
}

// nodeGroup is a node group whose template node has slices.
type nodeGroup struct {
	cloudprovider.NodeGroup
	slices []*resourcev1.ResourceSlice
}

// TemplateNodeInfo returns the template node with its slices. Cluster Autoscaler replaces the names of the node, of
// pools and of slices for each simulated node.
func (g nodeGroup) TemplateNodeInfo() (*framework.NodeInfo, error) {
	info, err := g.NodeGroup.TemplateNodeInfo()
	if err == nil {
		info.LocalResourceSlices = g.slices
	}
	return info, err
}
