"""Why a claim does not fit: request by request, device by device."""
