// Says what Kubernetes makes of quantities: reads one per line, writes one JSON object per line.
// Each line is also added to, subtracted from and compared with the line before it.
package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

type answer struct {
	Text      string `json:"text"`
	Refused   bool   `json:"refused,omitempty"`
	Canonical string `json:"canonical,omitempty"`
	Format    string `json:"format,omitempty"`
	Int64     *int64 `json:"int64,omitempty"`
	Value     int64  `json:"value,omitempty"`
	Milli     int64  `json:"milli,omitempty"`
	Float     string `json:"float,omitempty"`
	Compared  *int   `json:"compared,omitempty"`
	Sum       string `json:"sum,omitempty"`
	Less      string `json:"less,omitempty"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	before := ""
	for lines.Scan() {
		text := lines.Text()
		known := answer{Text: text}
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			known.Refused = true
		} else {
			known.Canonical = quantity.String()
			known.Format = string(quantity.Format)
			known.Value = quantity.Value()
			known.Milli = quantity.MilliValue()
			known.Float = strconv.FormatFloat(quantity.AsApproximateFloat64(), 'g', -1, 64)
			if whole, ok := quantity.AsInt64(); ok {
				known.Int64 = &whole
			}
			if before != "" {
				other := resource.MustParse(before)
				compared := quantity.Cmp(other)
				known.Compared = &compared
				sum := resource.MustParse(text)
				sum.Add(resource.MustParse(before))
				known.Sum = sum.String()
				less := resource.MustParse(text)
				less.Sub(resource.MustParse(before))
				known.Less = less.String()
			}
			before = text
		}
		if err := out.Encode(known); err != nil {
			panic(err)
		}
	}
}
