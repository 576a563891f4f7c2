package main

import (
	"context"
	"fmt"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// calls makes the steps of every claim in turn, one call after the other, and measures each.
func (k *kubelet) calls(asked request) (answer, error) {
	plugin, ok := k.plugins[asked.Driver]
	if !ok {
		return answer{}, fmt.Errorf("%s is not registered", asked.Driver)
	}
	took := make([][]int64, len(asked.Steps))
	for range max(asked.Rounds, 1) {
		for _, claim := range asked.Claims {
			for number, step := range asked.Steps {
				began := time.Now()
				if err := plugin.call(step, claim); err != nil {
					return answer{}, fmt.Errorf("%s %s of %s: %w", asked.Driver, step, claim.Name, err)
				}
				took[number] = append(took[number], time.Since(began).Nanoseconds())
			}
		}
	}
	return answer{Took: took}, nil
}

// call makes one call with one claim, and checks the answer as the kubelet does.
func (p *plugin) call(step string, claim claim) error {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	claims := []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: claim.UID}}
	switch step {
	case "prepare":
		response, err := p.client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: claims})
		if err != nil {
			return err
		}
		result, ok := response.Claims[claim.UID]
		switch {
		case !ok || len(response.Claims) != 1:
			return fmt.Errorf("answered %d claims, not exactly the one that was asked for", len(response.Claims))
		case result.Error != "":
			return fmt.Errorf("%s", result.Error)
		case len(result.Devices) == 0 || len(result.Devices[0].CdiDeviceIds) == 0:
			return fmt.Errorf("answered without a CDI device")
		}
		return nil
	case "unprepare":
		response, err := p.client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
		if err != nil {
			return err
		}
		result, ok := response.Claims[claim.UID]
		if !ok {
			return fmt.Errorf("answered without the claim")
		}
		if result.Error != "" {
			return fmt.Errorf("%s", result.Error)
		}
		return nil
	}
	return fmt.Errorf("unknown step %q", step)
}
