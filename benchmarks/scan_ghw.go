// The same host through ghw: scan_ghw ROOT ROUNDS prints one time in ns per line.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jaypipes/ghw"
)

func main() {
	rounds, _ := strconv.Atoi(os.Args[2])
	for ; rounds > 0; rounds-- {
		start := time.Now()
		pci, err := ghw.PCI(ghw.WithChroot(os.Args[1]), ghw.WithDisableWarnings())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(time.Since(start).Nanoseconds(), len(pci.Devices))
	}
}
