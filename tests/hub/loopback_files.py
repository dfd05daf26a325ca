"""Files on the loopback Hub: uploads (preupload, LFS, commit) and downloads (resolve)."""

import base64
import fnmatch
import hashlib
import json
from typing import Any

from loopback_http import Answer, HubError, Request, json_answer, repo_type, route
from loopback_store import Blob, card_data, checked_path, is_lfs

# Uploads


@route("POST", "{api}/preupload/{revision}")
def preupload(hub: Any, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    """For every file: whether it is uploaded by LFS or ignored, and the present content of that name."""
    repo = hub.find(request, repo_type(kind), repo_id, write=True)
    no_pull_requests(request)
    blobs = repo.commit(revision).blobs
    wanted = request.json()
    attributes = blobs[".gitattributes"].content.decode() if ".gitattributes" in blobs else ""
    ignored = [line for line in wanted.get("gitIgnore", "").split() if not line.startswith("#")]
    modes = []
    for file in wanted["files"]:
        path = checked_path(file["path"])
        lfs = is_lfs(path, file["size"], base64.b64decode(file["sample"]), attributes)
        modes.append(
            {
                "path": path,
                "uploadMode": "lfs" if lfs else "regular",
                "shouldIgnore": any(fnmatch.fnmatch(path, pattern) for pattern in ignored),
                "oid": blobs[path].etag if path in blobs else None,
            }
        )
    return json_answer({"files": modes, "commitOid": repo.commit(revision).oid})


def no_pull_requests(request: Request) -> None:
    """A pull request must not become a commit on the branch."""
    if request.flag("create_pr"):
        raise HubError(400, "This Hub has no pull requests")


@route("POST", "{page}[.]git/info/lfs/objects/batch")
def lfs_batch(hub: Any, request: Request, kind: str, repo_id: str) -> Answer:
    """Upload addresses of the objects that are missing."""
    hub.find(request, repo_type(kind), repo_id, write=True)
    objects = []
    for wanted in request.json()["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        objects.append({"oid": oid, "size": size})
        if oid in hub.objects:
            continue
        prefix = f"{kind}/" if kind else ""
        verify = {"href": f"{hub.endpoint}/{prefix}{repo_id}.git/info/lfs/objects/verify"}
        upload: dict[str, Any] = {"href": f"{hub.endpoint}/uploads/{oid}"}
        objects[-1]["actions"] = {"upload": upload, "verify": verify}
    return json_answer({"transfer": "basic", "objects": objects})


@route("POST", "{page}[.]git/info/lfs/objects/verify")
def lfs_verify(hub: Any, request: Request, kind: str, repo_id: str) -> Answer:
    hub.find(request, repo_type(kind), repo_id, write=True)
    wanted = request.json()
    if len(hub.objects.get(wanted["oid"], b"")) != wanted["size"]:
        raise HubError(404, f"Object {wanted['oid']} was not uploaded")
    return json_answer({})


@route("POST", "{api}/commit/{revision}")
def commit(hub: Any, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    """All operations or none: the snapshot is built first and put on the branch at the end."""
    repo = hub.find(request, repo_type(kind), repo_id, write=True)
    no_pull_requests(request)
    if revision not in repo.branches:
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    blobs = dict(repo.commit(revision).blobs)
    header: dict[str, str] = {}
    for line in request.body.splitlines():
        operation = json.loads(line)
        if operation["key"] == "header":
            header = operation["value"]
        else:
            apply(hub, blobs, operation["key"], operation["value"])
    parent = header.get("parentCommit", "")
    if not repo.branches[revision].startswith(parent):
        raise HubError(412, "A commit has happened since. Please refresh and try again.")
    if "README.md" in blobs and (errors := card_data(blobs["README.md"].content.decode())[1]):
        raise HubError(400, "Invalid metadata in README.md: " + "; ".join(errors))
    made = repo.write(revision, blobs, header["summary"], header.get("description", ""), request.user or "")
    url = f"{hub.endpoint}/{repo.prefix}{repo_id}/commit/{made.oid}"
    return json_answer({"success": True, "commitOid": made.oid, "commitUrl": url})


def apply(hub: Any, blobs: dict[str, Blob], key: str, value: dict[str, Any]) -> None:
    path = checked_path(value["path"].removesuffix("/"))
    if key == "file":
        blobs[path] = Blob(base64.b64decode(value["content"]))
    elif key == "lfsFile":
        if value["oid"] not in hub.objects:
            raise HubError(400, f"LFS pointer of {path} pointed to a file that does not exist")
        blobs[path] = Blob(hub.objects[value["oid"]], lfs=True)
    elif key == "deletedFile":
        if blobs.pop(path, None) is None:
            raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
    elif key == "deletedFolder":
        inside = [name for name in blobs if name.startswith(path + "/")]
        if not inside:
            raise HubError(404, f"A folder with this name doesn't exist: {path}", "EntryNotFound")
        for name in inside:
            del blobs[name]
    else:
        raise HubError(400, f"Unknown operation {key!r}")


# Downloads


@route("GET HEAD", "{page}/(?:resolve|raw)/{revision}/(?P<path>.+)")
def resolve(hub: Any, request: Request, kind: str, repo_id: str, revision: str, path: str) -> Answer:
    repo = hub.find(request, repo_type(kind), repo_id)
    hub.check_content(request, repo)
    made, blob = repo.blob(revision, path)
    return Answer(blob.content, 200, {"X-Repo-Commit": made.oid, "ETag": f'"{blob.etag}"'})


@route("PUT", "/uploads/(?P<oid>[0-9a-f]{64})")
def upload_object(hub: Any, request: Request, oid: str) -> Answer:
    if hashlib.sha256(request.body).hexdigest() != oid:
        raise HubError(400, "The checksum of what was received is not the one that was announced")
    hub.objects[oid] = request.body
    return Answer()
