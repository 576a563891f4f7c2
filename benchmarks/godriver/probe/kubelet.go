package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The kubelet's own limits for its calls.
const (
	getInfoLimit = time.Second
	notifyLimit  = 5 * time.Second
	callLimit    = 45 * time.Second
)

type kubelet struct{ plugins map[string]*plugin }

// plugin is one registered driver; the kubelet, too, keeps one connection for all calls.
type plugin struct {
	connection *grpc.ClientConn
	client     drapb.DRAPluginClient
	info       *registerapi.PluginInfo
}

// register waits for the driver's socket in the registry directory and registers it as the kubelet does.
func (k *kubelet) register(ctx context.Context, registry, driver string) (answer, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return answer{}, err
	}
	defer watcher.Close()
	if err := watcher.Add(registry); err != nil {
		return answer{}, err
	}
	present, err := os.ReadDir(registry)
	if err != nil {
		return answer{}, err
	}
	for _, entry := range present {
		if found, err := k.try(ctx, filepath.Join(registry, entry.Name()), driver); found || err != nil {
			return k.registered(driver, err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return answer{}, fmt.Errorf("no socket of %s in %s: %w", driver, registry, ctx.Err())
		case event := <-watcher.Events:
			if !event.Has(fsnotify.Create) {
				continue
			}
			if found, err := k.try(ctx, event.Name, driver); found || err != nil {
				return k.registered(driver, err)
			}
		}
	}
}

// try registers the driver if it is the one behind a socket.
func (k *kubelet) try(ctx context.Context, socket, driver string) (bool, error) {
	status, err := os.Stat(socket)
	if err != nil || status.Mode()&os.ModeSocket == 0 || strings.HasPrefix(filepath.Base(socket), ".") {
		return false, nil
	}
	// The kubelet dials the bare path, so that the path becomes the call's authority.
	connection, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// A socket is seen when it is bound, a moment before it is listened on.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond},
			MinConnectTimeout: getInfoLimit,
		}),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return false, err
	}
	defer connection.Close()
	client := registerapi.NewRegistrationClient(connection)
	infoCtx, cancel := context.WithTimeout(ctx, getInfoLimit)
	defer cancel()
	info, err := client.GetInfo(infoCtx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.Name != driver {
		return false, err
	}
	plugin, err := connect(info.Endpoint)
	if err != nil {
		return false, err
	}
	notifyCtx, cancel := context.WithTimeout(ctx, notifyLimit)
	defer cancel()
	_, err = client.NotifyRegistrationStatus(notifyCtx, &registerapi.RegistrationStatus{PluginRegistered: true})
	if err != nil {
		return false, errors.Join(err, plugin.connection.Close())
	}
	plugin.info = info
	k.plugins[driver] = plugin
	return true, nil
}

func (k *kubelet) registered(driver string, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	at := monotonic()
	info := k.plugins[driver].info
	return answer{At: at, Endpoint: info.Endpoint, Versions: info.SupportedVersions}, nil
}

func connect(endpoint string) (*plugin, error) {
	connection, err := grpc.NewClient("unix:"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	connection.Connect()
	return &plugin{connection: connection, client: drapb.NewDRAPluginClient(connection)}, nil
}

func (k *kubelet) forget(driver string) error {
	plugin, ok := k.plugins[driver]
	if !ok {
		return fmt.Errorf("%s is not registered", driver)
	}
	delete(k.plugins, driver)
	return plugin.connection.Close()
}

// monotonic reads CLOCK_MONOTONIC, which Go's own clock does not show.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}
