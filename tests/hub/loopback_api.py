"""Routes of the loopback Hub for accounts, repositories, branches and lists of files."""

import hashlib
import re
from typing import Any
from urllib.parse import parse_qs

from loopback_http import Answer, HubError, Request, json_answer, repo_type, route
from loopback_store import Blob, Commit, Repo, card_data

# Accounts


@route("GET", "/api/whoami-v2")
def whoami(hub: Any, request: Request) -> Answer:
    if request.user is None:
        raise HubError(401, "Invalid username or password.")
    orgs = [{"type": "org", "name": org, "fullname": org} for org, who in hub.orgs.items() if request.user in who]
    role = "read" if request.read_only else "write"
    token = {"type": "access_token", "accessToken": {"displayName": "loopback", "role": role}}
    return json_answer({"type": "user", "name": request.user, "fullname": request.user, "orgs": orgs, "auth": token})


@route("POST", "/api/validate-yaml")
def validate_yaml(hub: Any, request: Request) -> Answer:
    content, errors = card_data(request.json()["content"])
    if errors:
        return json_answer({"errors": [{"message": error} for error in errors], "warnings": []}, 400)
    missing = [] if content else [{"message": "empty or missing yaml metadata in repo card"}]
    return json_answer({"errors": [], "warnings": missing})


# Repositories


@route("POST", "/api/repos/create")
def create_repo(hub: Any, request: Request) -> Answer:
    wanted = request.json()
    type = wanted.get("type", "model")
    if request.user is None:
        raise HubError(401, "Invalid username or password.")
    repo_id = f"{wanted.get('organization') or request.user}/{wanted['name']}"
    hub.check_write(request, repo_id)
    if re.fullmatch(r"[\w.-]{1,96}", wanted["name"]) is None or type not in ("model", "dataset", "space"):
        raise HubError(400, f"Invalid repository name or type: {wanted['name']!r}, {type!r}")
    known = hub.repos.get((type, repo_id))
    if known is not None:
        url = f"{hub.endpoint}/{known.prefix}{repo_id}"
        message = f"You already created this {type} repo"
        return json_answer({"error": message, "url": url}, 409, {"X-Error-Message": message})
    repo = hub.create(repo_id, type=type, private=wanted.get("visibility") == "private", sdk=wanted.get("sdk"))
    return json_answer({"url": f"{hub.endpoint}/{repo.prefix}{repo_id}", "name": repo_id, "id": repo_id})


@route("GET", "{api}(?:/revision/{revision})?")
def repo_info(hub: Any, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    repo = hub.find(request, repo_type(kind), repo_id)
    content = info(repo, revision or "main", blobs=request.flag("blobs"))
    if "expand" in request.query or "expand[]" in request.query:
        wanted = request.query.get("expand", []) + request.query.get("expand[]", [])
        content = {name: value for name, value in content.items() if name in {"id", "_id", *wanted}}
    return json_answer(content)


def info(repo: Repo, revision: str, blobs: bool = False) -> dict[str, Any]:
    commit = repo.commit(revision)
    card = card_data(commit.blobs["README.md"].content.decode())[0] if "README.md" in commit.blobs else {}
    siblings: list[dict[str, Any]] = []
    for path, blob in sorted(commit.blobs.items()):
        siblings.append({"rfilename": path})
        if blobs:
            siblings[-1] |= {"size": blob.size, "blobId": blob.oid}
            if blob.lfs:
                siblings[-1]["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": len(blob.pointer)}
    tags = card.get("tags", [])
    return {
        "_id": hashlib.sha1(repo.id.encode()).hexdigest()[:24],
        "id": repo.id,
        "modelId": repo.id,
        "author": repo.author,
        "sha": commit.oid,
        "createdAt": repo.commits()[-1].date,
        "lastModified": commit.date,
        "private": repo.private,
        "gated": repo.gated,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "sdk": repo.sdk,
        "tags": tags if isinstance(tags, list) else [tags],
        "pipeline_tag": card.get("pipeline_tag"),
        "library_name": card.get("library_name"),
        "cardData": card,
        "siblings": siblings,
    }


# Branches, tags, history


@route("GET", "{api}/refs")
def refs(hub: Any, request: Request, kind: str, repo_id: str) -> Answer:
    repo = hub.find(request, repo_type(kind), repo_id)
    named = {
        key: [{"name": name, "ref": f"refs/{folder}/{name}", "targetCommit": oid} for name, oid in known.items()]
        for key, folder, known in (("branches", "heads", repo.branches), ("tags", "tags", repo.tags))
    }
    return json_answer({**named, "converts": [], "pullRequests": []})


@route("POST DELETE", "{api}/branch/{revision}")
def branch(hub: Any, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    repo = hub.find(request, repo_type(kind), repo_id, write=True)
    if request.method == "DELETE":
        if revision == "main":
            raise HubError(403, "Cannot delete the default branch")
        if repo.branches.pop(revision, None) is None:
            raise HubError(404, f"Branch {revision} does not exist", "RevisionNotFound")
        return json_answer({})
    if revision in repo.branches:
        raise HubError(409, f"Reference refs/heads/{revision} already exists")
    repo.branches[revision] = repo.commit(request.json().get("startingPoint", "main")).oid
    return json_answer({})


# Listings of files


def entry(path: str, blob: Blob, last: Commit | None) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "file", "oid": blob.oid, "size": blob.size, "path": path}
    if blob.lfs:
        content["lfs"] = {"oid": blob.sha256, "size": blob.size, "pointerSize": len(blob.pointer)}
    if last is not None:
        content["lastCommit"] = {"id": last.oid, "title": last.title, "date": last.date}
        content["securityFileStatus"] = {"status": "unscanned", "avScan": None, "pickleImportScan": None}
    return content


def folder_entry(path: str) -> dict[str, Any]:
    return {"type": "directory", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0, "path": path}


def folders(blobs: dict[str, Blob]) -> set[str]:
    parts = [path.split("/")[:-1] for path in blobs]
    return {"/".join(names[: depth + 1]) for names in parts for depth in range(len(names))}


@route("GET", "{api}/tree/{revision}(?:/(?P<path>.+))?")
def tree(hub: Any, request: Request, kind: str, repo_id: str, revision: str, path: str) -> Answer:
    commit = hub.find(request, repo_type(kind), repo_id).commit(revision)
    known = folders(commit.blobs)
    if path and path not in known:
        raise HubError(404, f"{path} does not exist on {revision}", "EntryNotFound")
    start = f"{path}/" if path else ""
    recursive, last = request.flag("recursive"), commit if request.flag("expand") else None
    entries = {name: folder_entry(name) for name in known}
    entries |= {name: entry(name, blob, last) for name, blob in commit.blobs.items()}
    shown = [name for name in entries if name.startswith(start) and (recursive or "/" not in name[len(start) :])]
    return json_answer([entries[name] for name in sorted(shown)])


@route("POST", "{api}/paths-info/{revision}")
def paths_info(hub: Any, request: Request, kind: str, repo_id: str, revision: str) -> Answer:
    commit = hub.find(request, repo_type(kind), repo_id).commit(revision)
    form = parse_qs(request.body.decode())
    last = commit if form.get("expand", ["false"])[0].lower() == "true" else None
    known = folders(commit.blobs)
    found = [
        entry(path, commit.blobs[path], last) if path in commit.blobs else folder_entry(path)
        for path in form.get("paths", [])
        if path in commit.blobs or path in known
    ]
    return json_answer(found)
