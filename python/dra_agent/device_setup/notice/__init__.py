"""A claim whose containers read from a file that their host is being reclaimed."""

from __future__ import annotations

from dra_agent.device_setup.notice.directory import NoticeDirectory
from dra_agent.device_setup.notice.document import ReclaimNotice
from dra_agent.device_setup.notice.setup import NoticeSetup, ReclaimNoticeConfig

__all__ = ["NoticeDirectory", "NoticeSetup", "ReclaimNotice", "ReclaimNoticeConfig"]
