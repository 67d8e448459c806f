import subprocess, sys, threading
import pytest
@pytest.mark.django_db(transaction=True)
def test_db(postgres):
    from django.contrib.auth.models import Group
    from django.db import connection
    Group.objects.create(name="a")
    seen=[]
    def other():
        seen.append(Group.objects.count()); connection.close()
    t=threading.Thread(target=other); t.start(); t.join()
    assert seen==[1]
    from tests.services import database_url
    import psycopg2
    c=psycopg2.connect(database_url()); cu=c.cursor(); cu.execute("select count(*) from auth_group"); assert cu.fetchone()==(1,); c.close()
def test_redis(redis):
    from django.core.cache import cache
    cache.set("a",1); assert cache.get("a")==1
    from celery import shared_task
    from controlplane.celery import app
    app.send_task("x.y", queue="coordination")
    import redis as r
    with r.Redis.from_url(redis.url) as c: assert c.llen("coordination")==1
def test_none():
    from controlplane.celery import app
    assert app.conf.broker_url.endswith(":1/0")
def test_redis2(redis):
    import redis as r
    from controlplane.celery import app
    with r.Redis.from_url(redis.url) as c: assert c.llen("coordination")==0
    app.send_task("x.y", queue="coordination")
    with r.Redis.from_url(redis.url) as c: assert c.llen("coordination")==1
