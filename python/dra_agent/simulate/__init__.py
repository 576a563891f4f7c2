"""Hosts that are not there: sysfs and dev trees and vendor libraries of well-known machines."""
