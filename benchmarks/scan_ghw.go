// The same host through ghw: scan_ghw ROOT pci|all ROUNDS prints one time in ns per line.
//
// `all` asks for what dra-agent reads as far as ghw has it: PCI functions, NUMA nodes, GPUs with their DRM cards, and
// network interfaces; `pci` for the PCI functions alone.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jaypipes/ghw"
)

func main() {
	rounds, _ := strconv.Atoi(os.Args[3])
	options := []any{ghw.WithChroot(os.Args[1]), ghw.WithDisableWarnings(), ghw.WithDisableTools()}
	for ; rounds > 0; rounds-- {
		start := time.Now()
		pci, err := ghw.PCI(options...)
		check(err)
		if os.Args[2] == "all" {
			_, err = ghw.Topology(options...)
			check(err)
			_, err = ghw.GPU(options...)
			check(err)
			_, err = ghw.Network(options...)
			check(err)
		}
		fmt.Println(time.Since(start).Nanoseconds(), len(pci.Devices))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
